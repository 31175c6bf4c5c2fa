"""Read and write CSV files with one row per run, which users may have edited."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import TypeAlias, TypeVar

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import atomic_write

Row = TypeVar("Row")


def _float_or_none(text: str = "") -> float | None:
    return float(text) if text else None


_Cell: TypeAlias = "int | float | str | None"

_TYPES: Mapping[str, Callable[..., _Cell]] = {
    "int": int,
    "float": float,
    "str": str,
    "float | None": _float_or_none,
}


def column_types(row_type: type) -> dict[str, Callable[..., _Cell]]:
    """Return column -> conversion of its text; called without a text, it returns a blank value."""
    return {field.name: _TYPES[str(field.type)] for field in fields(row_type)}


def read_rows(path: Path, row_type: type[Row], *, unique: str | None = None) -> list[Row]:
    """Read all rows in the order in which they were written; empty without a file.

    Args:
        path: of the CSV file.
        row_type: a dataclass whose attributes are `int`, `float`, `str` or `float | None`. It
            raises a `ValueError` for values that a run cannot have. Older files may lack the last
            columns, if they have a default.
        unique: a column that has another value in each row; None for none.

    Raises:
        InputError: if the file is damaged, or another version wrote it.
    """
    if not path.exists():
        return []
    with _open(path) as reader:
        return list(_rows(path, reader, row_type, unique))


@contextmanager
def _open(path: Path) -> Iterator[csv.DictReader[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # editors may add a BOM
            yield csv.DictReader(file)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a table of runs ({error}); use another folder") from None


def _rows(
    path: Path, reader: csv.DictReader[str], row_type: type[Row], unique: str | None
) -> Iterator[Row]:
    types = column_types(row_type)
    later = [field.name for field in fields(row_type) if field.default is not MISSING]
    _check_columns(path, reader.fieldnames or (), tuple(types), fewest=len(types) - len(later))
    first: dict[_Cell, int] = {}
    for cells in reader:
        number = reader.line_num
        try:
            row = row_type(**_parsed(dict.fromkeys(later, "") | cells, types))
        except ValueError as error:
            raise InputError(
                f"{path}: line {number} is damaged ({error}); delete the line"
            ) from None
        if unique and first.setdefault(value := getattr(row, unique), number) != number:
            raise InputError(
                f"{path}: line {number} has the same run as line {first[value]} "
                f"({unique} {value}); delete one of them"
            )
        yield row


def _check_columns(
    path: Path, found: Sequence[str], columns: Sequence[str], *, fewest: int
) -> None:
    """Refuse a file without these columns, in this order; those after the fewest may lack."""
    required = columns[:fewest]
    if len(found) >= fewest and list(found) == list(columns[: len(found)]):
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


def _parsed(
    cells: Mapping[str, str | None], types: Mapping[str, Callable[[str], _Cell]]
) -> dict[str, _Cell]:
    """Convert the cells of a row; the error of a wrong one is a `ValueError`."""
    if None in cells or None in cells.values():
        raise ValueError(f"it does not have {len(types)} cells")
    return {name: _convert(name, cells[name], convert) for name, convert in types.items()}


def _convert(name: str, text: str, convert: Callable[[str], _Cell]) -> _Cell:
    try:
        return convert(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r:.40}, not a number") from None


def write_rows(path: Path, rows: Iterable[object], row_type: type) -> None:
    """Write a file; if this fails, the old one stays unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(column_types(row_type)))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def append_rows(path: Path, rows: Sequence[object]) -> None:
    """Add rows of one type; if this fails, the old file stays unchanged."""
    row_type = type(rows[0])
    write_rows(path, [*read_rows(path, row_type), *rows], row_type)
