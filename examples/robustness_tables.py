"""Show what `examples/robustness.py` found on several logs: four tables.

    python examples/robustness_tables.py FILE [FILE ...]

Each FILE is a CSV file that `examples/robustness.py --csv FILE` wrote. The first table describes
the logs. The second has the differences of the test AUC in points after the last epoch. The third
counts on how many logs each claim holds, after the last epoch and with the best epoch of every
run. The fourth has rank correlations with properties of the logs.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cowclip_merlin import InputError
from cowclip_merlin.errors import error_message
from cowclip_merlin.system.files import atomic_write

DIFFERENCES = (
    *("none x8", "none x32", "cowclip x1", "cowclip x8", "cowclip x32"),
    *("sqrt_star x8", "sqrt_star x32", "sde x8", "sde x32", "sde+clip x8", "sde+clip x32"),
)
CLIP = ("clip x8", "clip x32")
PROPERTIES = ("ids per row", "rare ids", "forgotten ids", "steps at x32", "overfitting")
GAINS = (*DIFFERENCES, *CLIP)
COLUMNS = ("log", "training rows", *PROPERTIES, "AUC", *GAINS)
_BEST = "best "  # before the name of a column of best epochs


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One prepared folder, and what its runs show.

    Attributes:
        name: name of the folder.
        rows: training rows.
        properties: name of `PROPERTIES` -> value: distinct ids per training row, share of these
            ids that occur at most twice, share that Adam forgets at the small batch, steps per
            epoch at the largest batch, points of AUC between the best and the last epoch of the
            small batch.
        auc: test AUC of the small batch without scaling and clip, in %.
        gains: name of `DIFFERENCES` -> points of AUC above the small batch; name of `CLIP` ->
            points of CowClip above the same rates without the clip. A name without runs is missing.
        best: the same with the best epoch of every run, chosen by its test AUC. That is no result,
            but it shows how much of a gain is overfitting of the other run.
    """

    name: str
    rows: int
    properties: Mapping[str, float]
    auc: float
    gains: Mapping[str, float]
    best: Mapping[str, float]


def table(variants: Sequence[Variant]) -> str:
    """Return what each folder is, as Markdown, one row per folder."""
    lines = _head("log", "training rows", *PROPERTIES, "AUC")
    for variant in variants:
        values = [_property(name, variant.properties[name]) for name in PROPERTIES]
        lines.append(_line([variant.name, f"{variant.rows:,}", *values, f"{variant.auc:.2f}"]))
    return "\n".join(lines)


def _property(name: str, value: float) -> str:
    style = {"rare ids": ".0%", "forgotten ids": ".0%", "steps at x32": ".0f"}
    return format(value, style.get(name, ".2f"))


def gains_table(variants: Sequence[Variant]) -> str:
    """Return the differences after the last epoch, one row per folder."""
    lines = _head("log", *GAINS)
    for variant in variants:
        gains = [f"{variant.gains[name]:+.2f}" if name in variant.gains else "" for name in GAINS]
        lines.append(_line([variant.name, *gains]))
    return "\n".join(lines)


def _head(*names: str) -> list[str]:
    return [_line(names), "|---|" + "---:|" * (len(names) - 1)]


def write_csv(path: Path, variants: Sequence[Variant]) -> None:
    """Write one line per folder with all digits; the columns are those of the table."""
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *(f"{_BEST}{name}" for name in GAINS)])
        for variant in variants:
            gains = [each.get(name, "") for each in (variant.gains, variant.best) for name in GAINS]
            writer.writerow(
                [variant.name, variant.rows, *variant.properties.values(), variant.auc, *gains]
            )


def read_csv(path: Path) -> list[Variant]:
    """Read what `write_csv` has written.

    Raises:
        InputError: if the file is missing or another one.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [_read(row) for row in csv.DictReader(file)]
    except (KeyError, TypeError, ValueError):
        what = "not a table of examples/robustness.py; give a file that its --csv wrote"
        raise InputError(f"{path}: {what}") from None


def _read(row: Mapping[str, str]) -> Variant:
    return Variant(
        name=row["log"],
        rows=int(row["training rows"]),
        properties={name: float(row[name]) for name in PROPERTIES},
        auc=float(row["AUC"]),
        gains={name: float(row[name]) for name in GAINS if row[name]},
        best={name: float(row[f"{_BEST}{name}"]) for name in GAINS if row[name]},
    )


def counts(variants: Sequence[Variant]) -> str:
    """Return how often each claim holds, and the median and range of the differences."""
    last = ("at or above 0", "above -0.1", "median", "range")
    lines = _head("", *last, "best epochs: above -0.1", "median", "range")
    for name in GAINS:
        values = np.array([each.gains[name] for each in variants if name in each.gains])
        best = np.array([each.best[name] for each in variants if name in each.gains])
        at_least = f"{(values >= 0).sum()} of {len(values)}"
        lines.append(_line([name, at_least, *_summary(values), *_summary(best)]))
    return "\n".join(lines)


def _summary(values: npt.NDArray[np.float64]) -> list[str]:
    holds = f"{(values > -0.1).sum()} of {len(values)}"
    return [holds, f"{np.median(values):+.2f}", f"{values.min():+.2f} to {values.max():+.2f}"]


def correlations(variants: Sequence[Variant]) -> str:
    """Return rank correlations (Spearman) of the differences with properties of the logs."""
    lines = _head("", *PROPERTIES)
    for name in ("none x32", "cowclip x8", "cowclip x32", "sqrt_star x32", "sde x32", "clip x32"):
        known = [variant for variant in variants if name in variant.gains]
        values = [variant.gains[name] for variant in known]
        found = [rank_correlation([c.properties[p] for c in known], values) for p in PROPERTIES]
        lines.append(_line([name, *("" if np.isnan(x) else f"{x:+.2f}" for x in found)]))
    return "\n".join(lines)


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN with fewer than three pairs or equal values.

    >>> rank_correlation([1, 5, 9], [0.1, 0.2, 0.9])
    1.0
    """
    import pandas

    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return float("nan")
    ranks = pandas.DataFrame({"x": x, "y": y}).rank()
    return round(float(np.corrcoef(ranks.x, ranks.y)[0, 1]), 12)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def tables(variants: Sequence[Variant]) -> str:
    """Return the four tables."""
    made = (table, gains_table, counts, correlations)
    return "\n\n".join(make(variants) for make in made)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 2 if a file is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="CSV files")
    try:
        variants = [variant for file in parser.parse_args(argv).files for variant in read_csv(file)]
    except (InputError, OSError) as error:
        print(f"robustness_tables: error: {error_message(error)}", file=sys.stderr)
        return 2
    print(tables(variants))
    return 0


if __name__ == "__main__":
    sys.exit(main())
