"""Write and read tables as files: `tables/<name>.json` of a results folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.tables.table import Cell, Table
from cowclip_merlin.experiments.tables.text import markdown_table
from cowclip_merlin.system.files import atomic_write, read_json
from cowclip_merlin.types import Json, JsonObject

VERDICTS = ("better", "worse", "noise", "")
_REMEDY = "write it again with cowclip experiment"


def write_table(folder: str | Path, table: Table) -> Path:
    """Write a table as `<folder>/<name>.json`; if this fails, an old file stays unchanged.

    Args:
        folder: created if missing.
        table: its numbers must be finite; a cell of diverged runs has no mean.

    Raises:
        ValueError: if a number is not finite.

    >>> import tempfile
    >>> table = Table(
    ...     name="t", title="T", claim="", unit="AUC %", corner="rule", columns=("1K",),
    ...     rows=(("none", (Cell(mean=80.8),)),),
    ... )
    >>> read_table(write_table(tempfile.mkdtemp(), table)) == table
    True
    """
    text = json.dumps(asdict(table), indent=2, allow_nan=False)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{table.name}.json"
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    return path


def write_markdown(folder: str | Path, table: Table) -> Path:
    """Write a table as `<folder>/<name>.md`, beside its JSON file."""
    path = Path(folder) / f"{table.name}.md"
    with atomic_write(path) as temporary:
        temporary.write_text(markdown_table(table), encoding="utf-8")
    return path


def read_table(path: str | Path) -> Table:
    """Read a table of `write_table`.

    Raises:
        InputError: if it is missing or damaged, or another version wrote it.
    """
    value = _of_type(path, "the file", read_json(path), dict)
    rows = _of_type(path, "rows", value.get("rows"), list)
    known = _checked(path, "", value | {"rows": []}, Table)
    parsed = tuple(_row(path, number, row) for number, row in enumerate(rows, 1))
    table = Table(**known | {"rows": parsed})
    if len(table.decimals_of_columns) not in (0, len(table.columns)):
        raise InputError(f"{path}: decimals_of_columns does not fit the columns; {_REMEDY}")
    if not all(0 <= n <= 10 for n in (table.decimals, *table.decimals_of_columns)):
        raise InputError(f"{path}: decimals must be 0 to 10; {_REMEDY}")
    for number, (_, cells) in enumerate(table.rows, 1):
        if len(cells) != len(table.columns):
            raise InputError(
                f"{path}: row {number} has {len(cells)} cells for {len(table.columns)} columns; "
                f"{_REMEDY}"
            )
    return table


def _row(path: str | Path, number: int, value: Json) -> tuple[str, tuple[Cell, ...]]:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{path}: row {number} is not a heading with cells; {_REMEDY}")
    heading = _of_type(path, f"heading of row {number}", value[0], str)
    cells = _of_type(path, f"cells of row {number}", value[1], list)
    return heading, tuple(_cell(path, f"row {number}, cell {k}", c) for k, c in enumerate(cells, 1))


def _cell(path: str | Path, where: str, value: Json) -> Cell:
    cell = Cell(**_checked(path, f"{where}, ", _of_type(path, where, value, dict), Cell))
    if cell.verdict not in VERDICTS:
        raise InputError(f"{path}: {where}: verdict is {cell.verdict!r}; {_REMEDY}")
    return cell


def _checked(
    path: str | Path, where: str, value: Mapping[str, Json], dataclass: type
) -> JsonObject:
    """Return the values of a dataclass; check each against its annotation."""
    annotations = {field.name: str(field.type) for field in fields(dataclass)}
    for name in value:
        if name not in annotations:
            raise InputError(f"{path}: {where}{name} is not of this version; {_REMEDY}")
    needed = {f.name for f in fields(dataclass) if f.default is f.default_factory is MISSING}
    for name in sorted(needed - set(value)):
        raise InputError(f"{path}: {where}{name} is missing; {_REMEDY}")
    return {k: _value(path, where + k, v, annotations[k]) for k, v in value.items()}


def _value(path: str | Path, where: str, value: Json, annotation: str) -> Any:
    if value is None and "None" in annotation:
        return None
    if annotation.startswith("tuple"):
        items = _of_type(path, where, value, list)
        if annotation == "tuple[str, ...]":
            items = [_of_type(path, where, item, str) for item in items]
        if annotation == "tuple[int, ...]":
            items = [_of_type(path, where, item, int) for item in items]
        return tuple(items)
    if annotation.startswith("float"):
        number = _of_type(path, where, value, (int, float))
        if not math.isfinite(number):
            raise InputError(f"{path}: {where} is {number}, not a finite number; {_REMEDY}")
        return float(number)
    return _of_type(path, where, value, {"int": int, "str": str, "bool": bool}[annotation])


def _of_type(path: str | Path, where: str, value: Json, type_: type | tuple[type, ...]) -> Any:
    if not isinstance(value, type_) or (isinstance(value, bool) and type_ is not bool):
        raise InputError(f"{path}: {where} is {value!r:.60}, which has a wrong type; {_REMEDY}")
    return value
