"""Read and write the finished runs of experiments on a log: one CSV file for each type of row."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.results.csv_table import check_columns, open_table, parse_cells
from cowclip_merlin.system.files import atomic_write

Row = TypeVar("Row")
_TYPES: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}


def read_rows(path: Path, row_type: type[Row]) -> list[Row]:
    """Read all rows in the order in which they were written; empty without a file.

    Args:
        path: of the CSV file.
        row_type: a dataclass whose attributes are `int`, `float` or `str`.

    Raises:
        InputError: if the file is damaged, or another version wrote it.
    """
    if not path.exists():
        return []
    with open_table(path) as reader:
        return list(_rows(path, reader, row_type))


def _rows(path: Path, reader: csv.DictReader[str], row_type: type[Row]) -> Iterator[Row]:
    types = {field.name: _TYPES[str(field.type)] for field in fields(row_type)}
    check_columns(path, reader.fieldnames or (), tuple(types))
    for row in reader:
        try:
            yield row_type(**parse_cells(row, types))
        except ValueError as error:
            raise InputError(
                f"{path}: line {reader.line_num} is damaged ({error}); delete the line"
            ) from None


def append_rows(path: Path, rows: Sequence[Any]) -> None:
    """Add rows of one type; if this fails, the old file stays unchanged."""
    row_type = type(rows[0])
    every = [*read_rows(path, row_type), *rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(row_type)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in every)
