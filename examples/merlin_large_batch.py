"""Train Merlin's DCN at a small batch with Adam, and at a larger one with CowClip; compare them.

    python examples/merlin_large_batch.py TRAIN VALID --label click --times 16

TRAIN and VALID are folders that an NVTabular workflow wrote. Both runs start from the same weights.
The rates of the small batch are those of Keras's Adam, and the rule `sde` scales them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import cowclip_merlin as cc
from cowclip_merlin import InputError, compat
from cowclip_merlin.errors import exit_code
from cowclip_merlin.types import KerasModel

RATE, L2 = 1e-3, 1e-5


def dcn(train: Path, label: str, seed: int) -> KerasModel:
    """Return Merlin's DCN for the columns of a folder."""
    nvt, mm = compat.nvtabular(), compat.merlin_models()
    compat.tensorflow().keras.utils.set_random_seed(seed)
    schema = nvt.Dataset(str(train), engine="parquet").schema
    tower = mm.MLPBlock([64, 32])
    return mm.DCNModel(schema, depth=2, deep_block=tower, prediction_tasks=mm.BinaryOutput(label))


def epochs_of(
    model: KerasModel, train: Path, valid: Path, *, batch_size: int, epochs: int
) -> Iterator[tuple[float, float]]:
    """Train; return the validation AUC and the rows per second of each epoch."""
    nvt, mm = compat.nvtabular(), compat.merlin_models()
    rows = nvt.Dataset(str(train), engine="parquet")
    loader = mm.Loader(rows, batch_size=batch_size)
    others = mm.Loader(nvt.Dataset(str(valid), engine="parquet"), batch_size=8192, shuffle=False)
    for _ in range(epochs):
        started = time.perf_counter()
        model.fit(loader, epochs=1, verbose=0)
        speed = rows.num_rows / (time.perf_counter() - started)
        yield model.evaluate(others, return_dict=True, verbose=0)["auc"], speed


def compare(args: argparse.Namespace) -> None:
    """Train both, and print a line for each epoch.

    Raises:
        InputError: if a folder, a column or a number is wrong.
    """
    for name in ("batch_size", "times", "epochs"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} {getattr(args, name)}: give 1 or more")
    for folder in (args.train, args.valid):
        if not any(folder.glob("*.parquet")):
            raise InputError(f"{folder}: has no *.parquet; give a folder of NVTabular's to_parquet")
    with compat.quiet_merlin():
        schema = compat.nvtabular().Dataset(str(args.train), engine="parquet").schema
        if args.label not in schema.column_names:
            names = ", ".join(schema.column_names)
            raise InputError(f"{args.train}: has no column {args.label!r}; it has {names}")
        large = args.times * args.batch_size
        small = cc.Hyperparameters(
            batch_size=args.batch_size, embedding_lr=RATE, dense_lr=RATE, l2=L2
        )
        keras = compat.tensorflow().keras
        runs = {
            f"Adam, batch {args.batch_size:,}": (keras.optimizers.Adam(RATE), args.batch_size),
            f"CowClip, batch {large:,}": (cc.CowClip.of(cc.scale(small, to=large)), large),
        }
        print(f"{'':<24}{'epoch':>6}{'AUC':>9}{'rows/s':>10}")
        for name, (optimizer, batch_size) in runs.items():
            model = dcn(args.train, args.label, args.seed)
            metric = keras.metrics.AUC(name="auc")
            model.compile(optimizer, loss="binary_crossentropy", metrics=[metric])
            how = {"batch_size": batch_size, "epochs": args.epochs}
            found = epochs_of(model, args.train, args.valid, **how)
            for epoch, (auc, speed) in enumerate(found, 1):
                print(f"{name:<24}{epoch:>6}{auc:>9.4f}{speed:>10,.0f}", flush=True)
    print("The first epoch also traces the model, so compare the speeds of later ones.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; return 2 if the input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=Path, metavar="TRAIN", help="folder of the training rows")
    parser.add_argument("valid", type=Path, metavar="VALID", help="folder of the other rows")
    parser.add_argument("--label", required=True, metavar="COL", help="column of 0 and 1")
    for name, usual, words in (
        ("batch-size", 512, "rows of the small batch"),
        ("times", 16, "how often it is in the large one"),
        ("epochs", 3, "passes of each run"),
        ("seed", 1, "of the initial weights"),
    ):
        parser.add_argument(f"--{name}", type=int, default=usual, metavar="N", help=words)
    args = parser.parse_args(argv)
    return exit_code("merlin_large_batch", lambda: compare(args))


if __name__ == "__main__":
    sys.exit(main())
