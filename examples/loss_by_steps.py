"""Ask how much AUC CowClip loses from its small batch, by the number of steps per epoch.

    python examples/loss_by_steps.py RESULTS [RESULTS ...]

Each RESULTS is a folder with `results.csv`, which `cowclip experiment` wrote. Every DeepFM run with
CowClip at a larger batch is compared with the runs at the base batch with the same base rates, on
the same data. The table shows the differences of the test AUC in points, in groups of the steps per
epoch. The paper's largest batch makes 315 steps per epoch.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from cowclip_merlin import InputError
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.experiments.results.results_csv import read_results

GROUPS = ((450, math.inf), (200, 450), (100, 200), (50, 100), (0, 50))
"""Steps per epoch: from the first number on, below the second."""
FEWEST_EPOCHS = 3
_DIGITS = 6  # of a base rate: dividing by the scaling factor rounds the last ones


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One setting at one larger batch.

    Attributes:
        data: name of the data set.
        steps: steps per epoch.
        difference: mean test AUC over the seeds minus that at the base batch, in points.
    """

    data: str
    steps: int
    difference: float


def losses(results: Iterable[Result]) -> list[Loss]:
    """Compare the larger batches with the base batch; without runs at the base batch, leave out."""
    found: dict[tuple[object, ...], dict[int, list[Result]]] = defaultdict(dict)
    for result in filter(_counts, results):
        found[_base_settings(result)].setdefault(result.batch_size, []).append(result)
    return [
        Loss(
            data=runs[0].data,
            steps=runs[0].steps_per_epoch,
            difference=_mean(runs) - _mean(by_batch[base]),
        )
        for by_batch in found.values()
        for batch, runs in sorted(by_batch.items())
        if (base := runs[0].base_batch_size) in by_batch and batch > base
    ]


def _counts(result: Result) -> bool:
    """Whether a run is one of DeepFM with CowClip, on all ids, scored on test rows."""
    usual = (result.model, result.optimizer, result.rule, result.clip, result.update)
    return (
        usual == ("deepfm", "adam", "cowclip", "cowclip", "exact")
        and (result.split, result.status, result.variant) == ("test", "done", "")
        and result.epochs >= FEWEST_EPOCHS
    )


def _base_settings(result: Result) -> tuple[object, ...]:
    """Return what runs of one setting at several batches have in common."""
    factor = result.batch_size / result.base_batch_size
    rates = (result.embedding_lr, result.dense_lr / math.sqrt(factor), result.l2 / factor)
    rest = (result.r, result.zeta, result.init_std, result.warmup_epochs)
    sizes = (result.data_fingerprint, result.mlp, result.base_batch_size, result.epochs)
    return (*sizes, *rest, *(f"{rate:.{_DIGITS}g}" for rate in rates))


def _mean(results: Sequence[Result]) -> float:
    return 100 * fmean(result.auc for result in results)


def table(found: Sequence[Loss]) -> str:
    """Return one row per group of steps, as Markdown."""
    lines = [
        "| steps per epoch | settings | logs | median | middle half | range |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for low, high in GROUPS:
        mine = [each for each in found if low <= each.steps < high]
        if not mine:
            continue
        values = np.array([each.difference for each in mine])
        least, first, median, third, most = np.percentile(values, [0, 25, 50, 75, 100])
        name = f"{low} or more" if math.isinf(high) else f"{low} to {int(high) - 1}"
        cells = [name, str(len(mine)), str(len({each.data for each in mine})), f"{median:+.2f}"]
        cells += [f"{first:+.2f} to {third:+.2f}", f"{least:+.2f} to {most:+.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return 2 if the input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="results folders")
    args = parser.parse_args(argv)
    try:
        runs = [run for folder in args.results for run in _read(folder)]
        found = losses(runs)
        if not found:
            raise InputError("no runs of DeepFM with CowClip at two batches; give other folders")
    except InputError as error:
        print(f"loss_by_steps: error: {error}", file=sys.stderr)
        return 2
    print(table(found))
    return 0


def _read(folder: Path) -> list[Result]:
    if not (folder / "results.csv").is_file():
        raise InputError(f"{folder}: has no results.csv; give folders of cowclip experiment")
    return read_results(folder)


if __name__ == "__main__":
    sys.exit(main())
