"""Read CSV files with one row per run, which users may have edited."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError


@contextmanager
def open_table(path: Path) -> Iterator[csv.DictReader[str]]:
    """Open a table of runs to read.

    Raises:
        InputError: if the file is not a CSV file of UTF-8 text.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # editors may add a BOM
            yield csv.DictReader(file)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a table of runs ({error}); use another folder") from None


def check_columns(
    path: Path, found: Sequence[str], columns: Sequence[str], *, fewest: int | None = None
) -> None:
    """Refuse a table without these columns, in this order.

    Args:
        path: of the file.
        found: columns of the file.
        columns: columns of this version.
        fewest: number of columns that must exist; None: all.

    Raises:
        InputError: if a column is missing or unknown, or the order differs.
    """
    required = columns[:fewest]
    if len(found) >= len(required) and list(found) == list(columns[: len(found)]):
        return
    if not found:
        raise InputError(f"{path}: is empty; restore a copy, or delete it")
    wrong = "its columns have another order"
    if missing := [name for name in required if name not in found]:
        wrong = f"no column {missing[0]}"
    elif unknown := [name for name in found if name not in columns]:
        wrong = f"unknown column {unknown[0]!r:.40}"
    raise InputError(
        f"{path}: {wrong}; restore a copy, or use another folder if another version wrote it"
    )


def parse_cells(
    row: Mapping[str, str], types: Mapping[str, Callable[[str], Any]]
) -> dict[str, Any]:
    """Convert the cells of a row.

    Args:
        row: column -> text, of `csv.DictReader`.
        types: column -> conversion.

    Raises:
        ValueError: if a cell is missing, too much, or of the wrong type.

    >>> parse_cells({"auc": "0.75"}, {"auc": float})
    {'auc': 0.75}
    """
    if None in row or None in row.values():
        raise ValueError(f"it does not have {len(types)} cells")
    return {name: _convert(name, row[name], convert) for name, convert in types.items()}


def _convert(name: str, text: str, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r:.40}, not a number") from None
