"""How rows differ from those of training: missing, outside or unknown values; and odd ones."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows.nvtabular_graph import Statistics, filled
from cowclip_merlin.workflows.prepared.counts import SPECIAL, read_counts
from cowclip_merlin.workflows.raw.log_format import LogFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.workflows.prepared.folder import PreparedData

FEW = 20
"""Fewer rows, or different values, say nothing about a column."""
_POINTS = 0.2  # more unknown values than in the test rows, as a share, that are worth a line
_OUTSIDE = 0.01  # share of numbers outside of their range that is worth a line
_LEAST_MISSING = 0.01
_TIMES = 10
_SENTINEL = 100  # times the range of all other values
_MANY = 0.5  # share of unknown values that is worth a warning
_BOOLEANS = ("true", "false", "True", "False", "TRUE", "FALSE")
LOOKED_AT = 1000
"""Most frequent values whose form is that of all."""
_COMPARED = 100_000  # most frequent values of a vocabulary that unknown ones are compared with


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
        """Count rows of a table with the columns of `staged_columns`."""
        import pyarrow.compute as pc

        missing: dict[str, int] = {}
        outside: dict[str, int] = {}
        extremes: dict[str, tuple[float, ...]] = {}
        given = np.ones(len(table), bool) if rows is None else rows
        for name in (*self._format.categorical, *self._format.continuous):
            column = table[name]
            if name in self._format.multi:
                without = np.asarray(pc.list_value_length(column)) == 0
            else:
                without = np.asarray(column.is_null())
            missing[name] = int(np.count_nonzero(without & given))
            if name not in self._format.continuous:
                continue
            used = given & ~without
            if self._ranges is not None:
                numbers = filled(column, log=self._log)
                low, high = (x[name] for x in (self._ranges.minimum, self._ranges.maximum))
                beyond = (numbers < low) | (numbers > high)
                outside[name] = int(np.count_nonzero(beyond & used))
            elif not self._log and used.any():
                numbers = np.asarray(column)[used]
                low, high = numbers.min(), numbers.max()
                inner = numbers[(numbers > low) & (numbers < high)]
                extremes[name] = low, *((inner.min(), inner.max()) if len(inner) else ()), high
        with self._lock:
            self.rows += int(np.count_nonzero(given))
            self.missing.update(missing)
            self.outside.update(outside)
            for name, ends in extremes.items():
                every = np.unique([*ends, *self.extremes.get(name, ())]).tolist()
                self.extremes[name] = Extremes(every[0], every[:2][-1], every[-2:][0], every[-1])


def warn_of_changes(counts: ValueCounts, data: PreparedData) -> None:
    """Log a warning for each column that is missing, or outside of its range, in new rows."""
    for line in _changes(counts, data):
        logging.getLogger(__name__).warning("warning: %s", line)


def _changes(counts: ValueCounts, data: PreparedData) -> Iterator[str]:
    baseline = data.baseline
    for name, missing in counts.missing.items() if baseline.rows else ():
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


def format_shares(shares: Mapping[str, float]) -> str:
    """Format the shares of unknown values by column, the largest first.

    >>> format_shares({"item": 0.001, "user": 0.25})
    'unknown values (id 2): user 25.0%, item 0.1%'
    """
    falling = sorted(shares, key=lambda name: -shares[name])
    return "unknown values (id 2): " + ", ".join(f"{c} {100 * shares[c]:.1f}%" for c in falling)


def warn_of_unknown(
    base: PreparedData, shares: Mapping[str, float], frequent: Callable[[str], Sequence[str]]
) -> None:
    """Log a warning for each column most of whose values are unknown."""
    for name, share in shares.items():
        if share > _MANY:
            logging.getLogger(__name__).warning(
                "warning: column %r: %.0f%% of the values are unknown to %s; %s",
                name,
                100 * share,
                base.path,
                Remedy.of(frequent(name), base, name).text,
            )


def warn_of_two_texts(found: Mapping[str, tuple[str, str] | None]) -> None:
    """Log a warning for each vocabulary with two ids for what may be one value: True and true."""
    for name, pair in found.items():
        if pair:
            logging.getLogger(__name__).warning(
                "warning: column %r: %r and %r have two ids; if they are one value, write it in "
                "one way in all files",
                name,
                *pair,
            )


class Remedy(NamedTuple):
    """What to do about unknown values.

    Attributes:
        text: names a value that both write in different ways, or one of each.
        same_value: whether one of them is a known value, written in another way.
    """

    text: str
    same_value: bool

    @classmethod
    def of(cls, unknown: Sequence[str], base: PreparedData, name: str) -> Remedy:
        """Compare unknown values of a column with the vocabulary of a folder."""
        known = read_counts(base, name)["value"].slice(len(SPECIAL), _COMPARED).to_pylist()
        by_meaning = {_meaning(value): value for value in known}
        for value in unknown:
            if other := by_meaning.get(_meaning(value)):
                return cls(f"{value!r} is {other!r} there; write the column as there", True)
        if unknown and known:
            words = f"such as {unknown[0]!r}, but it has {known[0]!r}; check the column"
            return cls(words, False)
        return cls("check the column", False)


def _meaning(text: str) -> Decimal | str:
    """Return what two texts of one value have in common: the number, or the text without case.

    >>> _meaning("47.0") == _meaning("047") == _meaning("4.7e+01"), _meaning(" True")
    (True, 'true')
    """
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text.strip().casefold()
    return number if number.is_finite() else text.casefold()


def two_texts(vocabulary: ArrowColumn) -> tuple[str, str] | None:
    """Return two texts of a boolean in a vocabulary, if there are two.

    >>> import pyarrow as pa
    >>> two_texts(pa.array(["True", "x", "true"]))
    ('True', 'true')
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    words = vocabulary.filter(pc.is_in(vocabulary, pa.array(_BOOLEANS)))
    first: dict[str, str] = {}
    for word in words.to_pylist():
        if (other := first.setdefault(word.lower(), word)) != word:
            return other, word
    return None
