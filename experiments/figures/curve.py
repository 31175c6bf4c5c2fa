"""Store one curve of a figure as plain numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Runs that differ only in their seed, measured at the same values of x.

    Attributes:
        label: label in the legend.
        x: epochs, batches or multipliers, ascending.
        runs: one sequence of values per seed, as long as `x`; NaN for missing values.

    Raises:
        ValueError: if a run has another length than `x`, or there are no runs.

    >>> Curve(label="baseline", x=(1, 2), runs=((0.7, 0.8), (0.9, 0.8))).means()
    [0.8, 0.8]
    """

    label: str
    x: Sequence[float]
    runs: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        """Reject runs that cannot be drawn."""
        if not self.runs or any(len(run) != len(self.x) for run in self.runs):
            raise ValueError(f"{self.label}: every run must have {len(self.x)} values")

    def values(self) -> list[list[float]]:
        """Return for each x the finite values of all seeds."""
        return [[v for v in column if math.isfinite(v)] for column in zip(*self.runs)]

    def means(self) -> list[float]:
        """Return for each x the mean of the finite values; NaN if there are none."""
        return [statistics.fmean(v) if v else math.nan for v in self.values()]

    def range(self) -> tuple[list[float], list[float]]:
        """Return for each x the minimum and maximum of the finite values; NaN if there are none."""
        values = [v or [math.nan] for v in self.values()]
        return [min(v) for v in values], [max(v) for v in values]
