"""Check whether the verdicts of our tables agree with the paper's differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cowclip_merlin.experiments.tables.table import NOISE, Cell, Table

# The paper states a spread over seeds below 0.012 AUC points. With it, the rule for our numbers
# decides which of the paper's numbers differ.
PAPER_NOISE = NOISE * math.sqrt(2) * 0.012


@dataclass(frozen=True, kw_only=True)
class JudgedCell:
    """One cell, compared with its table's reference.

    Attributes:
        table: table of the cell.
        row: heading of its row.
        column: heading of its column.
        cell: the cell.
        outcome: "better", "worse" or "noise"; a diverged run is worse.
        difference: difference from the reference's mean, in the table's unit; None if diverged.
        paper: the paper's difference from its own reference; None without published numbers.
    """

    table: Table
    row: str
    column: str
    cell: Cell
    outcome: str
    difference: float | None
    paper: float | None


def reference_cell(table: Table) -> Cell | None:
    """Return the cell that verdicts compare with: it has a spread but no verdict.

    Lines with other ids than the reference have no verdicts either, so `table.reference` decides.

    Returns:
        None if the table has no verdicts.

    >>> table = Table(
    ...     name="t", title="", claim="", unit="AUC %", corner="", columns=("1K", "8K"),
    ...     rows=(("none", (Cell(mean=8.0, spread=0.1, runs=2),
    ...                     Cell(mean=7.0, spread=0.1, runs=2, verdict="worse"))),),
    ... )
    >>> reference_cell(table).mean
    8.0
    """
    if not any(cell.verdict for _, row in table.rows for cell in row):
        return None
    found = [
        (cell, _is_named(table, label, column))
        for label, row in table.rows
        for column, cell in zip(table.columns, row)
        if cell.spread is not None and not cell.verdict
    ]
    named = [cell for cell, is_named in found if is_named or len(found) == 1]
    return named[0] if len(named) == 1 else None


def _is_named(table: Table, label: str, column: str) -> bool:
    """Whether `table.reference` is this cell: "none at batch 1,024" is "x1 = 1,024" of "none"."""
    name, _, batch = table.reference.rpartition(" at batch ")
    heading = column.partition(" (")[0]  # without the name of a multiplier
    return label == name and heading.endswith(f"= {batch}")


def judged_cells(table: Table) -> Iterator[JudgedCell]:
    """Yield the cells of a table with a verdict, and those of diverged runs."""
    reference = reference_cell(table)
    if reference is None:
        return
    for row, cells in table.rows:
        for column, cell in zip(table.columns, cells):
            diverged = cell.mean is None and cell.text == "diverged"
            if cell.verdict or diverged:
                yield JudgedCell(
                    table=table,
                    row=row,
                    column=column,
                    cell=cell,
                    outcome="worse" if diverged else cell.verdict,
                    difference=_minus(cell.mean, reference.mean),
                    paper=_minus(cell.published, reference.published),
                )


def gain_cells(table: Table) -> Iterator[JudgedCell]:
    """Yield the gains of a table of an experiment on a log that have a verdict.

    Such a gain is a difference from the reference already, here and in the paper.
    """
    for row, cells in table.rows:
        for column, cell in zip(table.columns, cells):
            if cell.verdict:
                yield JudgedCell(
                    table=table,
                    row=row,
                    column=column,
                    cell=cell,
                    outcome=cell.verdict,
                    difference=cell.mean,
                    paper=cell.published,
                )


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def count_verdicts(cells: Sequence[JudgedCell], outcome: str) -> int:
    """Count the cells with this outcome."""
    return sum(judged.outcome == outcome for judged in cells)


def auc_cells(tables: Sequence[Table]) -> list[JudgedCell]:
    """Return the judged AUC cells of all tables; omit cells that an earlier table has, too."""
    found: list[JudgedCell] = []
    for table in tables:
        if not table.unit.startswith("AUC"):
            continue
        earlier = set(map(_identity, found))
        found += [judged for judged in judged_cells(table) if _identity(judged) not in earlier]
    return found


def largest_speedup(tables: Sequence[Table]) -> tuple[JudgedCell, float] | None:
    """Return the judged time with the largest speedup beyond noise, and that speedup.

    Returns:
        None if no time is better than its reference.
    """
    times = [each for t in tables if t.unit.startswith("minutes") for each in judged_cells(t)]
    better = [
        (each, (each.cell.mean - each.difference) / each.cell.mean)
        for each in times
        if each.outcome == "better" and each.cell.mean and each.difference is not None
    ]
    return max(better, key=lambda pair: pair[1], default=None)


def _identity(judged: JudgedCell) -> tuple[object, ...]:
    """Return a key for the same runs and reference; row and column for diverged runs."""
    cell = judged.cell
    key = (judged.row, judged.column) if cell.mean is None else (cell.mean, cell.spread)
    return (*key, reference_cell(judged.table))


@dataclass(frozen=True, kw_only=True)
class PaperEffect:
    """Comparison of a data set's numbers with the paper's differences.

    Attributes:
        kept: cells that are not worse than the reference in the paper.
        lost: cells that are worse than the reference in the paper.
    """

    kept: Sequence[JudgedCell]
    lost: Sequence[JudgedCell]

    @property
    def conclusion(self) -> str:
        """ "seen" (all), "seen in part" (most of either kind), "not seen", or "not judged".

        With cells of only one kind, the effect can be missing, but not shown.
        """
        groups = [
            (len(self.kept) - count_verdicts(self.kept, "worse"), len(self.kept)),
            (count_verdicts(self.lost, "worse"), len(self.lost)),
        ]
        if any(every and 2 * right <= every for right, every in groups):
            return "not seen"
        if not (self.kept and self.lost):
            return "not judged"
        return "seen" if all(right == every for right, every in groups) else "seen in part"


def paper_effect(cells: Sequence[JudgedCell]) -> PaperEffect:
    """Split the judged cells with a published number by the paper's outcome."""
    published = [judged for judged in cells if judged.paper is not None]
    return PaperEffect(
        kept=[judged for judged in published if judged.paper >= -PAPER_NOISE],
        lost=[judged for judged in published if judged.paper < -PAPER_NOISE],
    )


def largest_changes(cells: Sequence[JudgedCell]) -> tuple[JudgedCell | None, JudgedCell | None]:
    """Return the largest gain and the largest loss beyond noise; None if there is none."""
    better = [judged for judged in cells if judged.outcome == "better"]
    worse = [
        judged for judged in cells if judged.outcome == "worse" and judged.difference is not None
    ]
    gain = max(better, key=_size, default=None)
    return gain, max(worse, key=_size, default=None)


def _size(judged: JudgedCell) -> float:
    return abs(judged.difference or 0.0)
