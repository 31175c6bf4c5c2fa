"""The commands that two workers run one after another, and what they say of wrong ones."""

import signal

ARGUMENTS = (
    "--model", "deepfm", "--mlp", "16,8", "--embedding-dim", "4", "--update", "exact",
    "--preset", "criteo", "--batch-size", "88",  # of 4,049 rows: one is left for the last batch
    "--r", "0.003", "--embedding-lr", "0.001", "--epochs", "2", "--seed", "5", "--device", "cpu",
    "--checkpoint-every", "12", "--diagnostics-every", "10",
)  # fmt: skip
LITTLE_MEMORY = ("--data-memory", "0.04")  # MB, so that rows are streamed
REFUSED = {  # arguments that only the last worker has, and what all say of them
    ("--mlp", "8"): "has setting mlp [8], worker 0 ",
    ("--checkpoint-every", "9"): "has --checkpoint-every 9, worker 0 ",
    ("--batch-size", "99999"): "batch size 99999 is larger than ",
}
NORMALIZED = ("--dropout", "0.3", "--batch-norm", "--activation", "dice", "--epochs", "1")
STOPPING = (
    "--validation-fraction", "0.2", "--early-stopping", "2", "--embedding-lr", "0.006",
    "--warmup-epochs", "0",
)  # fmt: skip
SHARDED = (
    "--model deepfm --preset criteo --batch-size 64 --mlp 8 --update exact --checkpoint-every 20 "
    "--device cpu"
)


def train(rows, out, *more):
    return ["train", str(rows), "--out", str(out), *ARGUMENTS, *more]


def sharded(rows, out, epochs, *more):
    words = ["train", str(rows), "--out", str(out), *SHARDED.split(), "--tables", "sharded"]
    return [*words, "--epochs", str(epochs), *more]


def of_two(rows, other_rows, folder):
    """What two workers do, by name."""
    refused = train(rows, folder / "refused")
    partly = {"arguments": train(rows, folder / "partly"), "of_last": LITTLE_MEMORY}
    return {
        "whole": {"arguments": train(rows, folder / "whole")},
        "streamed": {"arguments": train(rows, folder / "streamed", *LITTLE_MEMORY)},
        "partly": partly,
        "stopped": {"arguments": train(rows, folder / "stopped"), "signal": signal.SIGTERM},
        "resumed": {"arguments": train(rows, folder / "stopped", "--resume")},
        "after a kill": {"arguments": train(rows, folder / "killed", "--resume")},
        **{" ".join(x): {"arguments": refused, "of_last": x} for x in REFUSED},
        "versions": {"arguments": refused, "versions": {"numpy": "0.1"}},
        "data": {"arguments": refused, "data_of_last": str(other_rows)},
        "no data": {"arguments": refused, "data_of_last": str(folder / "none")},
        "normalized": {"arguments": train(rows, folder / "normalized", *NORMALIZED)},
        "sharded": {"arguments": sharded(rows, folder / "sharded", 2)},
        "reset": {"arguments": sharded(rows, folder / "reset", 2, "--reset-embeddings")},
        "stopping": {"arguments": sharded(rows, folder / "stopping", 30, *STOPPING)},
    }
