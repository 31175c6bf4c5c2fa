"""What the tables show, and whether it is what the paper says: from verdicts alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cowclip_merlin.experiments.tables.table import NOISE, Cell, Table

# The paper gives the spread over seeds as below 0.012 AUC points. Two of its numbers are taken to
# differ by the rule that ours are held to.
PAPER_NOISE = NOISE * math.sqrt(2) * 0.012


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One number held against its table's reference.

    Attributes:
        table: where it stands.
        row: its heading.
        column: its heading.
        cell: the number.
        outcome: "better", "worse" or "noise"; a diverged run is worse.
        difference: from the reference's mean, in the table's unit; None if it diverged.
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
    """The cell that verdicts are against: the one with a spread but without a verdict.

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
    cells = [cell for _, row in table.rows for cell in row]
    if not any(cell.verdict for cell in cells):
        return None
    found = [cell for cell in cells if cell.spread is not None and not cell.verdict]
    return found[0] if len(found) == 1 else None


def judged(table: Table) -> Iterator[Judged]:
    """The numbers of a table that have a verdict, and those that diverged."""
    reference = reference_cell(table)
    if reference is None:
        return
    for row, cells in table.rows:
        for column, cell in zip(table.columns, cells):
            diverged = cell.mean is None and cell.text == "diverged"
            if cell.verdict or diverged:
                yield Judged(
                    table=table,
                    row=row,
                    column=column,
                    cell=cell,
                    outcome="worse" if diverged else cell.verdict,
                    difference=_minus(cell.mean, reference.mean),
                    paper=_minus(cell.published, reference.published),
                )


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def count(numbers: Sequence[Judged], outcome: str) -> int:
    """How many have this outcome."""
    return sum(number.outcome == outcome for number in numbers)


def scores(tables: Sequence[Table]) -> list[Judged]:
    """The judged AUCs of several tables; a number that an earlier table has too comes once."""
    found: list[Judged] = []
    for table in tables:
        if not table.unit.startswith("AUC"):
            continue
        earlier = set(map(_identity, found))
        found += [number for number in judged(table) if _identity(number) not in earlier]
    return found


def fastest(tables: Sequence[Table]) -> tuple[Judged, float] | None:
    """The time that is the smallest part of its reference beyond noise, and the reference / time.

    Returns:
        None if no table of minutes has a time below its reference.
    """
    times = [n for t in tables if t.unit.startswith("minutes") for n in judged(t)]
    better = [
        (n, (n.cell.mean - n.difference) / n.cell.mean)
        for n in times
        if n.outcome == "better" and n.cell.mean and n.difference is not None
    ]
    return max(better, key=lambda found: found[1], default=None)


def _identity(number: Judged) -> tuple[object, ...]:
    """Equal for the same runs against the same reference; runs that diverged go by their place."""
    cell = number.cell
    place = (number.row, number.column) if cell.mean is None else (cell.mean, cell.spread)
    return (*place, reference_cell(number.table))


@dataclass(frozen=True, kw_only=True)
class Effect:
    """How a data set's numbers compare with the paper's differences.

    Attributes:
        kept: numbers that in the paper are no worse than the reference, and how they came out.
        lost: numbers that in the paper are worse than the reference.
    """

    kept: Sequence[Judged]
    lost: Sequence[Judged]

    @property
    def word(self) -> str:
        """ "seen" (all), "seen in part" (most of either kind), "not seen", or "not judged".

        If there are numbers of one kind only, the effect can be missed, but not seen.
        """
        groups = [
            (len(self.kept) - count(self.kept, "worse"), len(self.kept)),
            (count(self.lost, "worse"), len(self.lost)),
        ]
        if any(every and 2 * right <= every for right, every in groups):
            return "not seen"
        if not (self.kept and self.lost):
            return "not judged"
        return "seen" if all(right == every for right, every in groups) else "seen in part"


def effect(numbers: Sequence[Judged]) -> Effect:
    """Split judged AUCs by what the paper found."""
    known = [number for number in numbers if number.paper is not None]
    return Effect(
        kept=[number for number in known if number.paper >= -PAPER_NOISE],
        lost=[number for number in known if number.paper < -PAPER_NOISE],
    )


def extremes(numbers: Sequence[Judged]) -> tuple[Judged | None, Judged | None]:
    """The largest gain and the largest loss beyond noise; None where there is none."""
    better = [n for n in numbers if n.outcome == "better"]
    worse = [n for n in numbers if n.outcome == "worse" and n.difference is not None]
    gain = max(better, key=lambda n: abs(n.difference or 0), default=None)
    loss = max(worse, key=lambda n: abs(n.difference or 0), default=None)
    return gain, loss
