"""The main job on small real logs: prepare, train at a small and a large batch, three seeds.

    python benchmarks/real_logs.py FOLDER [--work DIR] [--epochs 8] [--seeds 3]

FOLDER holds any of criteo_8k.txt.gz (rows of Criteo Kaggle's train.txt), avazu_9k.csv.gz (rows
of Avazu's train) and frappe_58k.csv.gz (label and ten categorical columns). The settings are
fixed beforehand, the same for all logs; nothing is tuned on the test rows.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import statistics
from pathlib import Path

from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.training.records import versions
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

LOGS = {"criteo": "criteo_8k.txt.gz", "avazu": "avazu_9k.csv.gz", "frappe": "frappe_58k.csv.gz"}
BASE_BATCH = 64
RATES = {"embedding_lr": 1e-3, "dense_lr": 1e-3, "l2": 1e-4}
RUNS = (("none", 64), ("none", 1024), ("sqrt", 1024), ("linear", 1024), ("cowclip", 1024))


def prepared(name: str, file: Path, work: Path) -> PreparedData:
    """The prepared folder of one log, made if it is not there."""
    out = work / name
    if out.exists():
        return PreparedData.load(out)
    if name != "frappe":
        return prepare(PrepareSettings(files=(file,), out=out, kind=name))
    with gzip.open(file, "rt") as stream:
        columns = next(csv.reader(stream))
    fields = tuple(c for c in columns if c != "label")
    settings = PrepareSettings(
        files=(file,), out=out, kind="table", label="label", categorical=fields
    )
    return prepare(settings)


def run(data: PreparedData, rule: str, batch: int, *, epochs: int, seed: int, work: Path) -> dict:
    """Last record of one run."""
    settings = RunSettings(
        model="deepfm",
        batch_size=batch,
        base_batch_size=BASE_BATCH,
        preset="criteo",
        rule=rule,
        epochs=epochs,
        seed=seed,
        overrides=RATES,
    )
    return train(data.path, settings, out=work / f"{data.path.name}-{rule}-{batch}-{seed}")[-1]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, default=Path("work/real"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    lines = [
        "| log | batch | rule | test AUC %, mean (min to max) | log loss |",
        "|---|---:|---|---:|---:|",
    ]
    for name, file in LOGS.items():
        if not (args.folder / file).exists():
            lines.append(f"| {name} | | not found | | |")
            continue
        data = prepared(name, args.folder / file, args.work)
        for rule, batch in RUNS:
            ends = [
                run(data, rule, batch, epochs=args.epochs, seed=seed, work=args.work)
                for seed in range(1, args.seeds + 1)
            ]
            auc = [100 * end["test_auc"] for end in ends]
            loss = statistics.mean(end["test_log_loss"] for end in ends)
            lines.append(
                f"| {name} | {batch} | {rule} | {statistics.mean(auc):.2f} "
                f"({min(auc):.2f} to {max(auc):.2f}) | {loss:.4f} |"
            )
    print("\n".join(["", *lines, "", str(versions())]))


if __name__ == "__main__":
    main()
