"""Check the rows of a raw log as a reader has parsed them; the damaged ones go to a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.raw.values.numbers import is_missing, no_label

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from cowclip_merlin.workflows.raw.columns import Bools, Column


@dataclass(frozen=True)
class BadLine:
    """A line that could not be parsed as a row.

    Attributes:
        file: name of the file.
        line: number of the line in the file, counted from 1.
        reason: what is wrong.
        text: the line.
    """

    file: str
    line: int
    reason: str
    text: bytes


@dataclass(frozen=True)
class ParsedRows:
    """Rows of one block.

    Attributes:
        table: Arrow table of the log's columns.
        positions: position of each row from the start of the block.
        lines: number of rows in the block, including damaged ones.
        bad: the damaged lines of the block.
        text: the lines themselves; empty for parquet.
        kept: Arrow table of other columns of a parquet file, as they are in it.
    """

    table: pa.Table
    positions: npt.NDArray[np.uint64]
    lines: int
    bad: list[BadLine]
    text: bytes = b""
    kept: pa.Table | None = None


NOT_READABLE = "not readable"


def checked(table: pa.Table, columns: Iterable[Column], where: object) -> tuple[pa.Table, Bools]:
    """Return a table with the values that all readers give, and its good rows, bool [n]."""
    import pyarrow as pa

    found = dict(zip(table.column_names, table.columns))
    good, has_label = np.ones(len(table), bool), None
    for column in columns:
        values, right = column.check(table[column.name], f"{where}: column {column.name!r}")
        found[column.name] = values
        found |= column.parts(values)
        if right is not None:
            good &= right
        if column.optional:
            known = np.asarray(values.is_valid(), bool)
            has_label = known if has_label is None else has_label | known
    return pa.table(found), good if has_label is None else good & has_label


def damage_of(columns: Sequence[Column], row: Mapping[str, object]) -> str:
    """Describe what is wrong with a row as a file has it; `NOT_READABLE` if no value alone is.

    >>> from cowclip_merlin.workflows.raw.columns import Label, Number
    >>> damage_of([Label("y"), Number("x", whole=True)], {"y": "1", "x": "1.5"})
    "x is '1.5', not a whole number"
    """
    optional = [each.name for each in columns if each.optional]
    if optional and all(is_missing(row.get(name)) for name in optional):
        return no_label(optional)
    found = filter(None, (each.damage(row.get(each.name)) for each in columns))
    return next(found, NOT_READABLE)


def checked_rows(
    table: pa.Table, columns: Sequence[Column], file: FilePath, start: int
) -> ParsedRows:
    """Return the good rows of a table whose first row is row `start` of the file."""
    import pyarrow as pa

    names = [each.name for each in columns]
    found, good = checked(table.select(names), columns, file)
    places = np.flatnonzero(~good)
    bad = [
        BadLine(str(file), start + place + 1, damage_of(columns, row), b"")
        for place, row in zip(places.tolist(), table.select(names).take(places).to_pylist())
    ]
    return ParsedRows(
        found.filter(pa.array(good)), np.flatnonzero(good).astype(np.uint64), len(good), bad
    )


SHOWN_BAD_LINES = 20
_MIN_ROWS_TO_JUDGE = 1000  # with fewer rows, the share of damaged ones is too uncertain


class Quarantine:
    """The damaged lines of a log.

    Args:
        file: file to append the lines to; None only counts them.
        max_bad_fraction: maximum share of damaged rows; above it, `check` raises an error.
        written: number of lines that an earlier pass over the same log wrote; skip as many.

    Raises:
        InputError: `max_bad_fraction` is no share.

    Attributes:
        count: number of damaged rows so far.
        first: the first damaged rows.
        written: number of the log's damaged rows in the file.
    """

    def __init__(self, file: Path | None, *, max_bad_fraction: float, written: int = 0) -> None:
        if not 0 <= max_bad_fraction <= 1:
            raise InputError(f"max_bad_fraction is {max_bad_fraction}; give 0 <= x <= 1")
        self.file, self.max_bad_fraction = file, max_bad_fraction
        self.count, self.first, self.written = 0, [], written

    def add(self, bad: Sequence[BadLine]) -> None:
        """Count these lines and write them."""
        new = bad[max(self.written - self.count, 0) :]
        self.count += len(bad)
        self.first += bad[: SHOWN_BAD_LINES - len(self.first)]
        if not new or self.file is None:
            return
        self.file.parent.mkdir(exist_ok=True)
        with self.file.open("ab") as stream:
            for line in new:
                head = f"{line.file}\t{line.line}\t{line.reason}\t".encode()
                stream.write(head + line.text + b"\n")
        self.written = self.count

    def check(self, file: FilePath, total: int, *, at_end: bool = False) -> None:
        """Raise an error if the share of damaged rows is too large."""
        if total < _MIN_ROWS_TO_JUDGE and not at_end:
            return
        if self.count > self.max_bad_fraction * total:
            first = self.first[0]
            raise InputError(
                f"{file}: {self.count} or more of {total} rows are damaged, above "
                f"{self.max_bad_fraction:.2%}; the first is {first.file}:{first.line}: "
                f"{first.reason}; repair the file or raise `max_bad_fraction`"
            )
