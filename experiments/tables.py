"""Tables of means, spreads and verdicts: as text, as Markdown and as JSON files."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cowclip_merlin.checks import is_finite
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import Experiment, LogExperiment
from cowclip_merlin.system.files import atomic_write, read_json
from cowclip_merlin.types import Json, JsonObject

NOISE = 2.0
VERDICTS = ("better", "worse", "noise", "")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table, or the text in its place."""

    text: str = "not run"  # or "diverged", or a plain value
    mean: float | None = None  # over the seeds, in the table's unit
    spread: float | None = None  # sample standard deviation; None with fewer than two seeds
    runs: int = 0
    published: float | None = None
    verdict: str = ""  # of a comparison with the reference; one of `VERDICTS`
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table, ready to print or write; its cells are as many in each row as the columns."""

    name: str
    title: str
    claim: str
    unit: str  # of all numbers, such as "AUC %"
    corner: str  # heading of the first column
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    data: str = ""  # name of the data set and its size
    reference: str = ""  # label and batch of the cell that verdicts compare with
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # runs that were not made, and why
    command: str = ""
    fingerprint: str = ""  # of the data; empty for a table that no data changes
    decimals: int = 2
    decimals_of_columns: tuple[int, ...] = ()  # where they differ
    on_log: bool = False  # whether verdicts are of gains over the reference

    def column_decimals(self) -> tuple[int, ...]:
        """Return the digits after the decimal point of each column."""
        return self.decimals_of_columns or (self.decimals,) * len(self.columns)


def experiment_table(
    experiment: Experiment | LogExperiment, *, notes: Sequence[str] = (), **rest: Any
) -> Table:
    """Make a table with what its experiment says, and further notes."""
    return Table(
        name=experiment.name,
        title=experiment.title,
        claim=experiment.claim,
        corner=experiment.corner,
        notes=(*experiment.notes, *notes),
        **rest,
    )


def mean_cell(values: Sequence[float], **known: Any) -> Cell:
    """Make the cell of runs that differ only in their seed.

    >>> mean_cell([80.0, 81.0]).mean
    80.5
    """
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Cell(mean=statistics.fmean(values), spread=spread, runs=len(values), **known)


def verdict(cell: Cell, reference: Cell, *, higher_is_better: bool = True) -> str:
    """Judge whether two means differ by more than `NOISE` standard errors of their difference.

    Returns:
        "better", "worse" or "noise"; "" if a mean or a spread is missing.

    >>> verdict(mean_cell([80.0, 80.2]), mean_cell([70.0, 70.2]))
    'better'
    """
    if None in (cell.mean, cell.spread, reference.mean, reference.spread):
        return ""
    error = math.sqrt(cell.spread**2 / cell.runs + reference.spread**2 / reference.runs)
    difference = cell.mean - reference.mean
    if abs(difference) <= NOISE * error:
        return "noise"
    return "better" if (difference > 0) == higher_is_better else "worse"


def cell_text(cell: Cell, *, decimals: int = 2) -> str:
    """Format a cell as text: mean, spread, and the paper's number in brackets.

    >>> cell_text(Cell(mean=80.9, spread=0.01, runs=3, published=80.97))
    '80.90 ±0.01 [80.97]'
    """
    parts = [cell.text if cell.mean is None else f"{cell.mean:.{decimals}f}"]
    if cell.spread is not None:
        parts.append(f"±{cell.spread:.{decimals}f}")
    if cell.published is not None:
        parts.append(f"[{cell.published:.{decimals}f}]")
    return " ".join(parts)


def table_text(table: Table) -> str:
    """Format the table for a terminal."""
    lines = _lines(table)
    widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
    text = ["  ".join(x.ljust(w) for x, w in zip(line, widths)).rstrip() for line in lines]
    head = [table.title, *([table.data] if table.data else [])]
    return "\n".join([*head, "", *text, "", *_below(table)])


def markdown_table(table: Table) -> str:
    """Format the table as Markdown, with its title, its legend, its notes and its command."""
    head, *body = [[text.replace("|", "\\|") for text in line] for line in _lines(table)]
    rows = [head, ["---", *["---:"] * len(table.columns)], *body]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    text = [f"### {table.title}", "", f"{table.data}.", "", *lines, ""]
    below = [*_below(table), f"`{table.command}`"]
    return "\n".join([*text, *(f"- {line}" for line in below)]) + "\n"


def _lines(table: Table) -> list[list[str]]:
    """Return the headings and rows as text."""
    marks = {"better": "+", "worse": "-", "noise": "=", "": ""}
    body = [
        [
            heading,
            *(
                cell_text(cell, decimals=decimals) + marks[cell.verdict]
                for cell, decimals in zip(cells, table.column_decimals(), strict=True)
            ),
        ]
        for heading, cells in table.rows
    ]
    return [[table.corner, *table.columns], *body]


def _below(table: Table) -> list[str]:
    """Return the legend of the cells, the notes, and what was not run."""
    cells = [cell for _, row in table.rows for cell in row]
    parts = [table.unit]
    if any(cell.spread is not None for cell in cells):
        parts.append("mean ± standard deviation over seeds")
    if any(cell.published is not None for cell in cells):
        parts.append("[published]")
    if any(cell.verdict for cell in cells):
        parts.append(f"against {table.reference}: + better, - worse, = within noise")
    return ["; ".join(parts), *table.notes, *(f"not run: {line}" for line in table.missing)]


def write_table(folder: str | Path, table: Table) -> Path:
    """Write a table as `<folder>/<name>.json`; if this fails, an old file stays unchanged.

    Raises:
        ValueError: if a number is not finite; a cell of diverged runs has no mean.

    >>> import tempfile
    >>> table = Table(
    ...     name="t", title="T", claim="", unit="AUC %", corner="rule", columns=("1K",),
    ...     rows=(("none", (Cell(mean=80.8),)),),
    ... )
    >>> read_table(write_table(tempfile.mkdtemp(), table)) == table
    True
    """
    text = json.dumps(asdict(table), indent=2, allow_nan=False)
    return _write(Path(folder) / f"{table.name}.json", text + "\n")


def write_markdown(folder: str | Path, table: Table) -> Path:
    """Write a table as `<folder>/<name>.md`, beside its JSON file."""
    return _write(Path(folder) / f"{table.name}.md", markdown_table(table))


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


_REMEDY = "write it again with cowclip experiment"
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
}


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
    found = []
    for index, each in enumerate(_of_type(path, f"cells of row {number}", value[1], list), 1):
        where = f"row {number}, cell {index}"
        cell = Cell(**_checked(path, f"{where}, ", _of_type(path, where, each, dict), Cell))
        if cell.verdict not in VERDICTS:
            raise InputError(f"{path}: {where}: verdict is {cell.verdict!r}; {_REMEDY}")
        found.append(cell)
    return heading, tuple(found)


def _checked(path: str | Path, where: str, value: Mapping[str, Json], of: type) -> JsonObject:
    """Return the values of a dataclass; check each against its annotation."""
    known = {each.name: each for each in fields(of)}
    for name in value:
        if name not in known:
            raise InputError(f"{path}: {where}{name} is not of this version; {_REMEDY}")
    for name in sorted(known.keys() - value.keys()):
        if known[name].default is MISSING:
            raise InputError(f"{path}: {where}{name} is missing; {_REMEDY}")
    return {k: _value(path, where + k, each, str(known[k].type)) for k, each in value.items()}


def _value(path: str | Path, where: str, value: Json, annotation: str) -> Any:
    if value is None and annotation.endswith(" | None"):
        return None
    if annotation.startswith("tuple["):
        kind = annotation.removeprefix("tuple[").partition(",")[0]
        items = _of_type(path, where, value, list)
        return tuple(_value(path, where, item, kind) for item in items)
    kind = annotation.removesuffix(" | None")
    found = _of_type(path, where, value, _TYPES[kind])
    if kind == "float" and not is_finite(found):
        raise InputError(f"{path}: {where} is {found}, not a finite number; {_REMEDY}")
    return float(found) if kind == "float" else found


def _of_type(path: str | Path, where: str, value: Json, type_: type | tuple[type, ...]) -> Any:
    if not isinstance(value, type_) or (isinstance(value, bool) and type_ is not bool):
        raise InputError(f"{path}: {where} is {value!r:.60}, which has a wrong type; {_REMEDY}")
    return value
