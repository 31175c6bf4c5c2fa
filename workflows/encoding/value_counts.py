"""The continuous columns as NVTabular makes them, and counts of missing and outside values."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.types import Array, ArrowColumn
from cowclip_merlin.workflows.nvtabular_graph import Statistics
from cowclip_merlin.workflows.raw.log_format import LogFormat

if TYPE_CHECKING:
    import pyarrow as pa


def filled(column: ArrowColumn, *, log: bool) -> Array:
    """Return numbers before they are scaled; missing ones are 0.

    Args:
        column: Arrow array or chunked array of numbers, [n].
        log: replace x by log(1 + x), and by 0 where x is negative.

    Returns:
        float64 [n], or float32 with `log`.

    >>> import pyarrow as pa
    >>> filled(pa.array([1.5, None]), log=False).tolist()
    [1.5, 0.0]
    """
    x = np.asarray(column, np.float64)
    x = np.where(np.isnan(x), 0.0, x)
    if not log:
        return x
    with np.errstate(over="ignore"):  # beyond float32: infinite
        return np.log(np.maximum(x, 0).astype(np.float32) + 1)


def scaled(x: Array, low: float, high: float) -> Array:
    """Scale the range [low, high] to [0, 1], float32 [n]; 0 stays 0 if the range is empty.

    >>> scaled(np.array([1.0, 3.0]), 1.0, 5.0).tolist(), scaled(np.zeros(1), 0.0, 0.0).tolist()
    ([0.0, 0.5], [0.0])
    """
    spread = high - low
    with np.errstate(invalid="ignore", over="ignore"):
        found = (x - low) / spread if spread > 0 else x / (x * 2)
        found = found.astype(np.float32)
    found[np.isnan(found)] = 0
    return found


class Extremes(NamedTuple):
    """The two smallest and the two largest of the different numbers of a column."""

    lowest: float
    second_lowest: float
    second_highest: float
    highest: float


class ValueCounts:
    """What is counted of the rows of one split, or of rows to score.

    Threads may add rows at the same time.

    Args:
        log_format: the columns.
        ranges: count numbers outside of these; None notes the extremes instead.
        log: whether the ranges are those of log(1 + x).

    Attributes:
        rows: number of rows.
        missing: column -> rows without a value; a list without values counts.
        outside: continuous column -> numbers outside of its range.
        extremes: continuous column -> its extremes, as far as the numbers differ.
    """

    def __init__(
        self, log_format: LogFormat, *, ranges: Statistics | None = None, log: bool = False
    ) -> None:
        self._format, self._ranges, self._log = log_format, ranges, log
        self.rows = 0
        self.missing: Counter[str] = Counter()
        self.outside: Counter[str] = Counter()
        self.extremes: dict[str, Extremes] = {}
        self._lock = Lock()

    def add(self, table: pa.Table, rows: npt.NDArray[np.bool_] | None = None) -> None:
        """Count rows of a table with the columns of `staged_columns`.

        Args:
            table: the rows.
            rows: which of them, bool [n]; None: all.
        """
        missing: dict[str, int] = {}
        outside: dict[str, int] = {}
        extremes: dict[str, tuple[float, ...]] = {}
        for name in (*self._format.categorical, *self._format.continuous):
            without = _without_value(table[name], lists=name in self._format.multi)
            missing[name] = _count(without, rows)
            if name not in self._format.continuous:
                continue
            used = ~without if rows is None else rows & ~without
            if self._ranges is not None:
                numbers = filled(table[name], log=self._log)
                low, high = (x[name] for x in (self._ranges.minimum, self._ranges.maximum))
                outside[name] = _count((numbers < low) | (numbers > high), used)
            elif not self._log:
                numbers = np.asarray(table[name])[used]
                extremes |= {name: _ends(numbers)} if len(numbers) else {}
        with self._lock:
            self.rows += len(table) if rows is None else int(rows.sum())
            self.missing.update(missing)
            self.outside.update(outside)
            for name, ends in extremes.items():
                every = np.unique([*ends, *self.extremes.get(name, ())]).tolist()
                self.extremes[name] = Extremes(every[0], every[:2][-1], every[-2:][0], every[-1])


def _count(which: Array, rows: Array | None) -> int:
    return int(np.count_nonzero(which if rows is None else which & rows))


def _without_value(column: ArrowColumn, *, lists: bool) -> npt.NDArray[np.bool_]:
    import pyarrow.compute as pc

    if lists:
        return np.asarray(pc.list_value_length(column)) == 0
    return np.asarray(column.is_null()) if column.null_count else np.zeros(len(column), bool)


def _ends(numbers: Array) -> tuple[float, ...]:
    """Return the two smallest and the two largest different numbers, or fewer if there are."""
    low, high = numbers.min(), numbers.max()
    inner = numbers[(numbers > low) & (numbers < high)]
    return (low, high) if not len(inner) else (low, inner.min(), inner.max(), high)
