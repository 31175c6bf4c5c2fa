"""Write rows of CSV files and lines of logs, so that a killed process does no harm."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from cowclip_merlin.system.files import atomic_write
from cowclip_merlin.types import Json, JsonObject

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


FORMATS = ("text", "json")
"""Forms of a line."""


class JsonFormatter(logging.Formatter):
    """Write each record as one JSON object.

    The object has `time` (ISO 8601, UTC), `level`, `logger` and `message`. `values` has the numbers
    of the line, if the call gave them as `extra={"values": ...}`. A number that is not finite is
    null.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON of a record."""
        time = datetime.fromtimestamp(record.created, timezone.utc)
        entry: JsonObject = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if values := getattr(record, "values", None):
            entry["values"] = {name: _plain(value) for name, value in values.items()}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _plain(value: Json) -> Json:
    """Return a value as JSON has it.

    >>> _plain(float("nan")), _plain(2.5), _plain("x")
    (None, 2.5, 'x')
    """
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def formatter(log_format: str, text: str) -> logging.Formatter:
    """Return what formats lines.

    Args:
        log_format: one of `FORMATS`.
        text: the format of text, with the names of `logging`.
    """
    return JsonFormatter() if log_format == "json" else logging.Formatter(text)
