"""Do the verdicts of our tables agree with the paper's differences? The answer, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cowclip_merlin.experiments.results import ReplayResult, Result
from cowclip_merlin.experiments.tables import NOISE, Cell, Table

# The paper states a spread over seeds below 0.012 AUC points. With it, the rule for our numbers
# decides which of the paper's numbers differ.
PAPER_NOISE = NOISE * math.sqrt(2) * 0.012
MINUS = "\N{MINUS SIGN}"


class JudgedCell(NamedTuple):
    """One cell, compared with its table's reference; a diverged run is worse.

    `difference` is that from the reference's mean, in the table's unit; None if diverged. `paper`
    is that of the published numbers.
    """

    table: Table
    row: str
    column: str
    cell: Cell
    outcome: str
    difference: float | None
    paper: float | None

    @property
    def where(self) -> str:
        """Row, column and the short title of the table."""
        return f"{self.row} at {self.column}, {self.table.title.partition(':')[0]}"


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
    # "none at batch 1,024" is "x1 = 1,024" of "none"; a multiplier may have a name behind it.
    name, _, batch = table.reference.rpartition(" at batch ")
    found = [
        (cell, label == name and column.partition(" (")[0].endswith(f"= {batch}"))
        for label, row in table.rows
        for column, cell in zip(table.columns, row)
        if cell.spread is not None and not cell.verdict
    ]
    named = [cell for cell, is_named in found if is_named or len(found) == 1]
    return named[0] if len(named) == 1 else None


def judged_cells(table: Table) -> list[JudgedCell]:
    """Return the cells of a table with a verdict, and those of diverged runs.

    Gains of an experiment on a log are differences from the reference already.
    """
    reference = Cell(mean=0.0, published=0.0) if table.on_log else reference_cell(table)
    if reference is None:
        return []
    found = []
    for row, cells in table.rows:
        for column, cell in zip(table.columns, cells):
            diverged = not table.on_log and cell.mean is None and cell.text == "diverged"
            if cell.verdict or diverged:
                outcome = "worse" if diverged else cell.verdict
                difference = _minus(cell.mean, reference.mean)
                paper = _minus(cell.published, reference.published)
                found.append(JudgedCell(table, row, column, cell, outcome, difference, paper))
    return found


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


class Counts(NamedTuple):
    """Numbers of cells by outcome."""

    better: int
    noise: int
    worse: int


def count_verdicts(cells: Sequence[JudgedCell]) -> Counts:
    """Count the cells by outcome."""
    return Counts(*(sum(x.outcome == name for x in cells) for name in Counts._fields))


def _auc_cells(tables: Sequence[Table]) -> list[JudgedCell]:
    """Return the judged AUC cells of all tables; omit cells that an earlier table has, too."""
    found: list[JudgedCell] = []
    for table in tables:
        if table.unit.startswith("AUC"):
            earlier = set(map(_identity, found))
            found += [judged for judged in judged_cells(table) if _identity(judged) not in earlier]
    return found


def _identity(judged: JudgedCell) -> tuple[object, ...]:
    """Return a key for the same runs and reference; row and column for diverged runs."""
    cell = judged.cell
    key = (judged.row, judged.column) if cell.mean is None else (cell.mean, cell.spread)
    return (*key, reference_cell(judged.table))


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The answer for one data set: "seen", "seen in part", "not seen" or "not judged"."""

    title: str
    conclusion: str
    answer: str
    sentences: Sequence[str]


_ANSWERS = {
    "seen": "The paper's effect is seen.",
    "seen in part": "The paper's effect is seen in part.",
    "not seen": "The paper's effect is not seen.",
    "not judged": "These results cannot show whether the paper's effect exists.",
}


def headline(
    title: str,
    tables: Sequence[Table],
    results: Sequence[Result],
    replays: Sequence[ReplayResult],
    *,
    of_data: bool,
) -> Headline:
    """Make the headline of a results folder from its verdicts; `of_data`: not only of a log."""
    gains = [judged for table in tables if table.on_log for judged in judged_cells(table)]
    conclusion, sentences = _gain_conclusion(gains), _gains(gains)
    if of_data:
        cells = _auc_cells([table for table in tables if not table.on_log])
        published = [judged for judged in cells if judged.paper is not None]
        kept = [judged for judged in published if judged.paper >= -PAPER_NOISE]
        lost = [judged for judged in published if judged.paper < -PAPER_NOISE]
        conclusion = _conclusion(kept, lost)
        sentences = [*_against_paper(kept, lost), *_all(cells), *_time(tables), *sentences]
    return Headline(
        title=title,
        conclusion=conclusion,
        answer=_ANSWERS[conclusion],
        sentences=[*sentences, *_runs(results), *_replays(replays)],
    )


def _conclusion(kept: Sequence[JudgedCell], lost: Sequence[JudgedCell]) -> str:
    """Compare with cells that are not worse than the reference in the paper, and that are.

    With cells of only one kind, the effect can be missing, but not shown.
    """
    right = (len(kept) - count_verdicts(kept).worse, count_verdicts(lost).worse)
    groups = list(zip(right, (len(kept), len(lost))))
    if any(every and 2 * some <= every for some, every in groups):
        return "not seen"
    if not (kept and lost):
        return "not judged"
    return "seen" if all(some == every for some, every in groups) else "seen in part"


def _gain_conclusion(gains: Sequence[JudgedCell]) -> str:
    """Say whether the gains that Monolith published are seen: of all, of most, or of fewer."""
    published = [judged for judged in gains if judged.paper is not None]
    better = count_verdicts(published).better
    if not published:
        return "not judged"
    if 2 * better <= len(published):
        return "not seen"
    return "seen" if better == len(published) else "seen in part"


def _of(some: int, every: Sequence[JudgedCell]) -> str:
    return f"{some} of {len(every)} {'does' if some == 1 else 'do'} so here"


def _signed(value: float | None, decimals: int) -> str:
    """Format a number with its sign, and a minus as wide as the plus."""
    return f"{value or 0.0:+.{decimals}f}".replace("-", MINUS)


def _change(judged: JudgedCell, decimals: int) -> str:
    paper = "" if judged.paper is None else f", in the paper {_signed(judged.paper, decimals)}"
    return f"{_signed(judged.difference, decimals)} AUC points{paper}"


def _largest(cells: Sequence[JudgedCell]) -> list[tuple[str, JudgedCell]]:
    """Return the largest gain and the largest loss beyond noise, those that exist."""

    def size(judged: JudgedCell) -> float:
        return abs(judged.difference or 0.0)

    gains = [judged for judged in cells if judged.outcome == "better"]
    losses = [x for x in cells if x.outcome == "worse" and x.difference is not None]
    named = (("largest gain", gains), ("largest loss", losses))
    return [(name, max(found, key=size)) for name, found in named if found]


def _gains(gains: Sequence[JudgedCell]) -> list[str]:
    """Compare gains with Monolith's, and name the largest ones of each table."""
    published = [judged for judged in gains if judged.paper is not None]
    sentences = []
    if published:
        better, noise, worse = count_verdicts(published)
        sentences.append(
            f"Where Monolith's AUC rises over that without syncs, {_of(better, published)}: "
            f"{better} better, {noise} within noise, {worse} worse."
        )
    for name in dict.fromkeys(judged.table.name for judged in gains):
        mine = [judged for judged in gains if judged.table.name == name]
        found = [f"{what} {_change(each, 2)} ({each.row})" for what, each in _largest(mine)]
        where = mine[0].table.title.partition(":")[0]
        sentences.append(f"{where}: {'; '.join(found) or 'no change beyond noise'}.")
    return sentences


def _against_paper(kept: Sequence[JudgedCell], lost: Sequence[JudgedCell]) -> list[str]:
    if not (kept or lost):
        return [
            "No number with a verdict has a published number to compare with; a verdict needs "
            "several seeds of a number and of its reference."
        ]
    sentences = ["No AUC that holds in the paper has a verdict here."]
    if kept:
        better, noise, worse = count_verdicts(kept)
        sentences = [
            "Where the paper's AUC holds (no worse than the reference), "
            f"{_of(better + noise, kept)}: {better} better, {noise} within noise, {worse} worse."
        ]
    if not lost:
        return [*sentences, "No AUC that falls in the paper has a verdict here."]
    better, noise, worse = count_verdicts(lost)
    return [
        *sentences,
        f"Where the paper's AUC falls, {_of(worse, lost)}: {worse} worse, {noise} within noise, "
        f"{better} better.",
    ]


def _all(cells: Sequence[JudgedCell]) -> list[str]:
    if not cells:
        return []
    better, noise, worse = count_verdicts(cells)
    largest = [
        f"{name.capitalize()}: {_change(each, each.table.decimals)} ({each.where})."
        for name, each in _largest(cells)
    ]
    return [
        f"All {len(cells)} AUCs that have a verdict: {better} better than the reference, "
        f"{noise} within noise, {worse} worse.",
        *largest,
    ]


def _time(tables: Sequence[Table]) -> list[str]:
    """Name the judged time with the largest speedup beyond noise."""
    times = [each for t in tables if t.unit.startswith("minutes") for each in judged_cells(t)]
    better = [
        (each, (each.cell.mean - each.difference) / each.cell.mean)
        for each in times
        if each.outcome == "better" and each.cell.mean and each.difference is not None
    ]
    if not better:
        return []
    judged, by = max(better, key=lambda pair: pair[1])
    return [
        f"Largest gain in training time: {by:.1f} times as fast as {judged.table.reference} "
        f"({judged.where})."
    ]


def counted(number: int, name: str) -> str:
    """Return a number with a noun.

    >>> counted(1, "run"), counted(2000, "run")
    ('1 run', '2,000 runs')
    """
    return f"{number:,} {name}{'s' * (number != 1)}"


def _runs(runs: Sequence[Result]) -> list[str]:
    if not runs:
        return []
    diverged = sum(run.status == "diverged" for run in runs)
    minutes = sum(run.seconds for run in runs) / 60
    time = counted(round(minutes), "minute") if minutes < 60 else f"{minutes / 60:.1f} hours"
    seeds = counted(len({run.seed for run in runs}), "seed")
    return [f"{counted(len(runs), 'run')} with {seeds}, {diverged} diverged, {time} of training."]


def _replays(replays: Sequence[ReplayResult]) -> list[str]:
    runs = {replay.run_id: replay for replay in replays}.values()
    if not runs:
        return []
    diverged = sum(run.status == "diverged" for run in runs)
    time = counted(round(sum(run.seconds for run in runs) / 60), "minute")
    seeds = counted(len({run.seed for run in runs}), "seed")
    return [f"{counted(len(runs), 'replay')} with {seeds}, {diverged} diverged, {time}."]
