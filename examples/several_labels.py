"""Compare what the labels of a log share: nothing, layers, experts or a probability.

    python examples/movielens.py ml-100k --out ratings.csv --labels
    python examples/several_labels.py ratings.csv --out results.csv

The labels are `click` (4 or 5 stars) and `favorite` (5 stars), which follows a click, so ESMM fits.
Each model trains with the recipe's rates and early stopping on the first label of held-out rows,
for each seed. `alone` trains one model per label. The file has the AUC of the test rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from cowclip_merlin.errors import exit_code
from cowclip_merlin.system.files import check_writable
from cowclip_merlin.system.records import write_rows
from cowclip_merlin.training import evaluate_run, settings_for, train
from cowclip_merlin.workflows import PrepareSettings, prepare

LABELS = ("click", "favorite")
CATEGORICAL = ("user", "item", "age", "gender", "occupation", "genres")
CATEGORICAL += ("user_genre", "item_age", "item_occupation")
WAYS = ("alone", "shared_bottom", "mmoe", "esmm")
COLUMNS = ("way", "seed", "label", "test_auc")


def run(data: Path, out: Path, *, seed: int, batch_size: int, epochs: int, way: str) -> list[float]:
    """Train once, and return the AUC of each label of the test rows."""
    given = {} if way == "alone" else {"multi_task": way}
    stop = {"validation_fraction": 0.1, "early_stopping": 1, "epochs": epochs}
    settings = settings_for(
        data, model="deepfm", batch_size=batch_size, mlp=(100, 100), seed=seed, **stop, **given
    )
    train(data, settings, out=out)
    result = evaluate_run(out, data)
    return [each.auc for each in (result.targets or {"": result}).values()]


def results(
    log: Path, seeds: Sequence[int], *, batch_size: int, epochs: int
) -> Iterator[dict[str, str | int | float]]:
    """Yield a row of the results for each way, seed and label."""
    with TemporaryDirectory() as temporary:
        work = Path(temporary)
        given = {"files": (log,), "kind": "table", "categorical": CATEGORICAL}
        prepare(PrepareSettings(out=work / "both", label=LABELS, **given))
        for label in LABELS:
            prepare(PrepareSettings(out=work / label, label=label, **given))
        for way in WAYS:
            for seed in seeds:
                aucs = []
                for name in LABELS if way == "alone" else ("both",):
                    how = {"seed": seed, "batch_size": batch_size, "epochs": epochs, "way": way}
                    aucs += run(work / name, work / f"{way}-{seed}-{name}", **how)
                for label, auc in zip(LABELS, aucs, strict=True):
                    yield {"way": way, "seed": seed, "label": label, "test_auc": auc}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; return 2 if the input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--batch-size", type=int, default=1024, metavar="N")
    parser.add_argument("--epochs", type=int, default=8, metavar="N", help="most epochs of a run")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    args = parser.parse_args(argv)

    def compare() -> None:
        check_writable(args.out, overwrite=args.overwrite)
        seeds = range(1, args.seeds + 1)
        found = results(args.log, seeds, batch_size=args.batch_size, epochs=args.epochs)
        write_rows(args.out, COLUMNS, list(found))
        print(f"{args.out}: {len(WAYS)} ways, {args.seeds} seeds")

    return exit_code("several_labels", compare)


if __name__ == "__main__":
    sys.exit(main())
