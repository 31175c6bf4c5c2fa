"""Write rows of CSV files, so that a killed process does no harm."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from cowclip_merlin.system.files import atomic_write

Row = Mapping[str, object]


def write_rows(
    path: Path, columns: Sequence[str], rows: Iterable[Row], *, line_end: str = "\r\n"
) -> None:
    """Write a file in one atomic step.

    Args:
        path: of the file.
        columns: of its first line.
        rows: column -> value; a column that is missing stays empty.
        line_end: of each line.
    """
    with atomic_write(path) as temporary:
        temporary.write_bytes(_lines(columns, [_head(columns), *rows], line_end))


def append_rows(
    path: Path, columns: Sequence[str], rows: Iterable[Row], *, line_end: str = "\r\n"
) -> None:
    """Add rows in one write; a new file gets its columns first.

    A last line that a killed process has cut is dropped. The arguments are those of `write_rows`.
    """
    with path.open("a+b") as file:
        new = _drop_cut_line(file) == 0
        file.write(_lines(columns, [*([_head(columns)] if new else []), *rows], line_end))


def _drop_cut_line(file: IO[bytes]) -> int:
    """Cut a file behind its last whole line; return its size."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 1, 0))
    if file.read(1) in (b"", b"\n"):
        return size
    file.seek(0)
    return file.truncate(file.read().rfind(b"\n") + 1)


def _head(columns: Sequence[str]) -> Row:
    return dict(zip(columns, columns, strict=True))


def _lines(columns: Sequence[str], rows: Iterable[Row], line_end: str) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator=line_end).writerows(rows)
    return text.getvalue().encode()
