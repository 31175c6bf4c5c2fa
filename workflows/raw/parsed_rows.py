"""Rows of a raw log after parsing, and the lines that could not be parsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
