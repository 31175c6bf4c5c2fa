"""Tables of means, spreads and verdicts: as text and as JSON files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import MALFORMED, InputError
from cowclip_merlin.experiments.definitions import Experiment, LogExperiment
from cowclip_merlin.settings.json_dataclass import dataclass_from_json
from cowclip_merlin.system.files import read_json, write_json
from cowclip_merlin.types import Json

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

    def __post_init__(self) -> None:
        """Refuse, by a `ValueError`, what no table has."""
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict is {self.verdict!r}")
        for number in (self.mean, self.spread, self.published):
            if not (number is None or math.isfinite(number)):
                raise ValueError(f"a cell has the number {number}")


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

    def __post_init__(self) -> None:
        """Refuse, by a `ValueError`, rows or decimals that do not fit the columns."""
        columns = len(self.columns)
        for number, (_, cells) in enumerate(self.rows, 1):
            if len(cells) != columns:
                raise ValueError(f"row {number} has {len(cells)} cells for {columns} columns")
        decimals = self.column_decimals()
        if len(decimals) != columns or not all(0 <= n <= 10 for n in decimals):
            raise ValueError(f"decimals of {columns} columns are {decimals}, not 0 to 10 of each")

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
    marks = {"better": "+", "worse": "-", "noise": "=", "": ""}
    lines = [[table.corner, *table.columns]]
    for heading, row in table.rows:
        pairs = zip(row, table.column_decimals(), strict=True)
        texts = (cell_text(cell, decimals=n) + marks[cell.verdict] for cell, n in pairs)
        lines.append([heading, *texts])
    widths = [max(map(len, column)) for column in zip(*lines)]
    text = ["  ".join(x.ljust(w) for x, w in zip(line, widths)).rstrip() for line in lines]
    head = [table.title, *([table.data] if table.data else [])]
    return "\n".join([*head, "", *text, "", *_below(table)])


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

    >>> import tempfile
    >>> table = Table(
    ...     name="t", title="T", claim="", unit="AUC %", corner="rule", columns=("1K",),
    ...     rows=(("none", (Cell(mean=80.8),)),),
    ... )
    >>> read_table(write_table(tempfile.mkdtemp(), table)) == table
    True
    """
    path = Path(folder) / f"{table.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(table))
    return path


def read_table(path: str | Path) -> Table:
    """Read a table of `write_table`.

    Raises:
        InputError: if it is missing or damaged, or another version wrote it.
    """
    value = read_json(path)
    try:
        rows = tuple(
            _row(number, heading, cells) for number, (heading, cells) in enumerate(value["rows"], 1)
        )
        return dataclass_from_json(Table, value | {"rows": rows})
    except MALFORMED as error:
        raise InputError(
            f"{path}: is no table of this version ({error!s:.80}); write it again with cowclip "
            "experiment"
        ) from None


def _row(number: int, heading: Json, cells: Json) -> tuple[str, tuple[Cell, ...]]:
    try:
        made = (dataclass_from_json(Cell, cell) for cell in cells)
        return str(heading), tuple(made)
    except MALFORMED as error:
        raise ValueError(f"row {number}: {error}") from None
