"""A table of the paper with our numbers in it: means, spreads, and how they compare."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cowclip_merlin.experiments.definitions import Experiment

NOISE = 2.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table.

    Attributes:
        text: what stands there if nothing was measured: "not run", "diverged", or a plain value.
        mean: over the seeds, in the table's unit; None if nothing was measured.
        spread: sample standard deviation over the seeds; None with fewer than two.
        runs: how many seeds.
        published: the paper's number, in the same unit; None if it has none.
        verdict: against the table's reference: "better", "worse", "noise", or "" for none.
        note: what a reader should know about this number, such as a misprint.
    """

    text: str = "not run"
    mean: float | None = None
    spread: float | None = None
    runs: int = 0
    published: float | None = None
    verdict: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table, ready to be printed or drawn.

    Attributes:
        name: of the experiment.
        title: one line.
        claim: what the paper says with it.
        unit: of all numbers, such as "AUC %".
        corner: what the rows are, such as "rule".
        columns: headings.
        rows: heading and cells of each row, as many cells as columns.
        data: name of the data set and its size.
        reference: in words, what verdicts are against; empty for none.
        notes: lines below the table.
        missing: runs that were not made, and why.
        command: what makes it again.
        decimals: places behind the point.
    """

    name: str
    title: str
    claim: str
    unit: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    data: str = ""
    reference: str = ""
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    command: str = ""
    decimals: int = 2


def table_of(experiment: Experiment, *, notes: Sequence[str] = (), **rest: Any) -> Table:
    """A table under its experiment's name, title, claim, corner and notes.

    Args:
        experiment: what is shown.
        notes: lines below the table, after the experiment's own.
        rest: the other attributes of `Table`.
    """
    return Table(
        name=experiment.name,
        title=experiment.title,
        claim=experiment.claim,
        corner=experiment.corner,
        notes=(*experiment.notes, *notes),
        **rest,
    )


def measured(values: Sequence[float], **known: object) -> Cell:
    """The cell of some runs that differ in their seed only.

    >>> measured([80.0, 81.0]).mean
    80.5
    """
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Cell(mean=statistics.fmean(values), spread=spread, runs=len(values), **known)


def verdict(cell: Cell, reference: Cell, *, higher_is_better: bool = True) -> str:
    """Whether two means differ by more than `NOISE` standard errors of their difference.

    Returns:
        "better", "worse" or "noise"; "" if one is missing, or has no spread.

    >>> verdict(measured([80.0, 80.2]), measured([70.0, 70.2]))
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
    """A cell as text: mean, spread, and the paper's number in brackets.

    >>> cell_text(Cell(mean=80.9, spread=0.01, runs=3, published=80.97))
    '80.90 ±0.01 [80.97]'
    """
    parts = [cell.text if cell.mean is None else f"{cell.mean:.{decimals}f}"]
    if cell.spread is not None:
        parts.append(f"±{cell.spread:.{decimals}f}")
    if cell.published is not None:
        parts.append(f"[{cell.published:.{decimals}f}]")
    return " ".join(parts)


def as_text(table: Table) -> str:
    """The table for a terminal."""
    marks = {"better": "+", "worse": "-", "noise": "=", "": ""}
    body = [
        [heading, *(cell_text(c, decimals=table.decimals) + marks[c.verdict] for c in cells)]
        for heading, cells in table.rows
    ]
    lines = [[table.corner, *table.columns], *body]
    widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
    text = ["  ".join(x.ljust(w) for x, w in zip(line, widths)).rstrip() for line in lines]
    legend = _legend(table)
    head = [table.title, *([table.data] if table.data else [])]
    missing = [f"not run: {line}" for line in table.missing]
    return "\n".join([*head, "", *text, "", legend, *table.notes, *missing])


def _legend(table: Table) -> str:
    """What the parts of its cells are."""
    cells = [cell for _, row in table.rows for cell in row]
    parts = [table.unit]
    if any(cell.spread is not None for cell in cells):
        parts.append("mean ± standard deviation over seeds")
    if any(cell.published is not None for cell in cells):
        parts.append("[published]")
    if any(cell.verdict for cell in cells):
        parts.append(f"against {table.reference}: + better, - worse, = within noise")
    return "; ".join(parts)
