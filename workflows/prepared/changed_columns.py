"""Columns that are otherwise in new rows than in training: unknown, missing or outside."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cowclip_merlin.workflows.raw.log_format import LogFormat

if TYPE_CHECKING:
    from pathlib import Path

    from cowclip_merlin.workflows.encoding.value_counts import Extremes, ValueCounts
    from cowclip_merlin.workflows.prepared.folder import PreparedData

FEW = 20
"""Fewer rows, or different values, say nothing about a column."""
_POINTS = 0.2  # more unknown values than in the test rows, as a share, that are worth a line
_OUTSIDE = 0.01  # share of numbers outside of their range that is worth a line
_LEAST_MISSING = 0.01
_TIMES = 10
_SENTINEL = 100  # times the range of all other values


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the rows of a prepared folder are like, to compare new rows with.

    Attributes:
        rows: training rows.
        missing: column -> training rows without a value.
        values: categorical column -> values of the test rows.
        unknown: categorical column -> those of them that are out of vocabulary.
    """

    rows: int
    missing: Mapping[str, int]
    values: Mapping[str, int]
    unknown: Mapping[str, int]

    def unknown_share(self, name: str) -> float | None:
        """Return the share of unknown values in the test rows; None if they have no values."""
        values = self.values.get(name, 0)
        return self.unknown[name] / values if values else None

    def far_more_unknown(self, name: str, share: float) -> bool:
        """Return whether less than half as large a share of the values is known.

        One value of each kind is added to the test rows: few of them say little, and none that
        half of the values are known.
        """
        values = self.values.get(name, 0)
        known = (values - self.unknown.get(name, 0) + 1) / (values + 2)
        return 1 - share < known / 2

    def more_unknown(self, name: str, share: float) -> bool:
        """Return whether the share is 20 points above that of the test rows (or 0), or more."""
        return share >= (self.unknown_share(name) or 0) + _POINTS


def count_unknown(folder: Path, log_format: LogFormat) -> tuple[dict[str, int], dict[str, int]]:
    """Return column -> values of the prepared rows in a folder, and -> unknown ones of them.

    Missing values do not count.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from cowclip_merlin.workflows.prepared.counts import SPECIAL

    names = list(log_format.categorical)
    values, unknown = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for file in sorted(folder.glob("*.parquet")):
        rows = pq.ParquetFile(file).read(columns=names)
        for name in names:
            ids = pc.list_flatten(rows[name]) if name in log_format.multi else rows[name]
            values[name] += pc.sum(pc.not_equal(ids, SPECIAL["null"])).as_py() or 0
            unknown[name] += pc.sum(pc.equal(ids, SPECIAL["oov"])).as_py() or 0
    return values, unknown


def warn_of_changes(counts: ValueCounts, data: PreparedData) -> None:
    """Log a warning for each column that is missing, or outside of its range, in new rows.

    Args:
        counts: of the new rows.
        data: the folder with the training rows.
    """
    for line in _changes(counts, data):
        logging.getLogger(__name__).warning("warning: %s", line)


def _changes(counts: ValueCounts, data: PreparedData) -> Iterator[str]:
    baseline = data.baseline
    for name, missing in counts.missing.items() if baseline and baseline.rows else ():
        share, before = missing / counts.rows, baseline.missing[name] / baseline.rows
        far_more = share > _TIMES * before + _LEAST_MISSING or 1 - share < (1 - before) / 2
        if missing >= FEW and far_more:
            yield (
                f"column {name!r}: {share:.1%} of the rows have no value, but {before:.1%} of the "
                "training rows; check the column"
            )
    for name, outside in counts.outside.items():
        share = outside / max(counts.rows - counts.missing[name], 1)
        if outside >= FEW and share > _OUTSIDE:
            limits = [x[name] for x in (data.statistics.minimum, data.statistics.maximum)]
            low, high = map(math.expm1, limits) if data.recipe.log else limits
            yield (
                f"column {name!r}: {share:.1%} of the numbers are outside of the training range, "
                f"{low:g} to {high:g}; check its unit"
            )


def warn_of_sentinels(extremes: Mapping[str, Extremes]) -> None:
    """Log a warning for each column whose range one value decides, such as 999999999."""
    for name, (lowest, second_lowest, second_highest, highest) in extremes.items():
        parts = {highest: (lowest, second_highest), lowest: (second_lowest, highest)}
        for value, (low, high) in parts.items():
            if 0 < _SENTINEL * (high - low) < highest - lowest:
                logging.getLogger(__name__).warning(
                    "warning: column %r: one value, %.10g, decides its range; all others are from "
                    "%.10g to %.10g; leave it empty if it means a missing number, or use --log",
                    name,
                    value,
                    low,
                    high,
                )
