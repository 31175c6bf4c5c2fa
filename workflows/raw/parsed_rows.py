"""Rows of a raw log after parsing, and the damaged ones, which go to a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


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
        """Raise an error if the share of damaged rows is too large.

        Args:
            file: the current file, for the message.
            total: number of rows so far; with few rows, check only at the end.
            at_end: whether these are all rows.

        Raises:
            InputError: if there are too many damaged rows.
        """
        if total < _MIN_ROWS_TO_JUDGE and not at_end:
            return
        if self.count > self.max_bad_fraction * total:
            first = self.first[0]
            raise InputError(
                f"{file}: {self.count} or more of {total} rows are damaged, above "
                f"{self.max_bad_fraction:.2%}; the first is {first.file}:{first.line}: "
                f"{first.reason}; repair the file or raise `max_bad_fraction`"
            )
