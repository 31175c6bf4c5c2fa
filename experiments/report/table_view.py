"""Format tables for the page, and the first lines of the page as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cowclip_merlin.experiments.report.results_folder import ResultsFolder
from cowclip_merlin.experiments.report.verdicts import (
    JudgedCell,
    PaperEffect,
    auc_cells,
    count_verdicts,
    gain_cells,
    largest_changes,
    largest_speedup,
    paper_effect,
    reference_cell,
)
from cowclip_merlin.experiments.tables.table import Cell, Table

MINUS = "\N{MINUS SIGN}"
SIGNS = {"better": "+", "worse": MINUS, "noise": "=", "": ""}
WORDS = {"better": "better", "worse": "worse", "noise": "within noise", "": ""}


@dataclass(frozen=True, kw_only=True)
class CellView:
    """One cell as text.

    Attributes:
        kind: CSS class of its color: a verdict, "reference", "absent", "text", or "" for a number
            without a comparison.
        value: mean, or the text in its place.
        spread: "±0.01", or "".
        sign: sign of the verdict.
        words: the verdict for screen readers.
        published: the paper's number, or "".
        seeds: "1 seed" if the number of seeds differs from that of most cells.
        note_letter: letter of the note below the table, or "".
    """

    kind: str
    value: str
    spread: str = ""
    sign: str = ""
    words: str = ""
    published: str = ""
    seeds: str = ""
    note_letter: str = ""


@dataclass(frozen=True, kw_only=True)
class TableView:
    """One table as text.

    Attributes:
        table: the table.
        anchor: id of its section.
        rows: heading and cells.
        notes: letter, or "", and text.
        legend: how to read a cell.
        wide: whether it needs a small font in print.
    """

    table: Table
    anchor: str
    rows: Sequence[tuple[str, Sequence[CellView]]]
    notes: Sequence[tuple[str, str]]
    legend: str
    wide: bool


def signed(value: float, decimals: int) -> str:
    """Format a number with its sign, and a minus as wide as the plus.

    >>> signed(-0.5, 1) == MINUS + "0.5", signed(0.5, 1)
    (True, '+0.5')
    """
    return f"{value:+.{decimals}f}".replace("-", MINUS)


def view_table(table: Table, *, anchor: str) -> TableView:
    """Format a table as text, ready for the template."""
    cells = [cell for _, row in table.rows for cell in row]
    seeds = _usual_seeds(cells)
    letters = _note_letters(cells)
    reference = reference_cell(table)
    rows = [
        (
            heading,
            [
                _view(cell, decimals, letters, seeds, cell is reference)
                for cell, decimals in zip(row, table.column_decimals(), strict=True)
            ],
        )
        for heading, row in table.rows
    ]
    return TableView(
        table=table,
        anchor=anchor,
        rows=rows,
        notes=_notes(table, letters),
        legend=_legend(table, cells, seeds),
        wide=len(table.columns) > 7,
    )


def _view(
    cell: Cell, decimals: int, letters: dict[str, str], seeds: int, is_reference: bool
) -> CellView:
    measured = cell.mean is not None
    number_format = f".{decimals}f"
    published = "" if cell.published is None else format(cell.published, number_format)
    kind = "reference" if is_reference else cell.verdict
    return CellView(
        kind=kind if measured else _kind_of(cell.text),
        value=format(cell.mean, number_format).replace("-", MINUS) if measured else cell.text,
        spread="" if cell.spread is None else f"±{format(cell.spread, number_format)}",
        sign=SIGNS[cell.verdict],
        words="the reference" if is_reference else WORDS[cell.verdict],
        published=published.replace("-", MINUS),
        seeds=_seeds_text(cell.runs) if measured and cell.runs != seeds else "",
        note_letter=letters.get(cell.note, ""),
    )


def _kind_of(text: str) -> str:
    """Return the CSS class of the text in place of a number."""
    return "absent" if text in ("", "not run", "diverged") else "text"


def _usual_seeds(cells: Sequence[Cell]) -> int:
    """Return the number of seeds that most measured cells have."""
    runs = Counter(cell.runs for cell in cells if cell.mean is not None)
    return runs.most_common(1)[0][0] if runs else 0


def _seeds_text(runs: int) -> str:
    return f"{runs} seed{'s' * (runs != 1)}"


def _note_letters(cells: Sequence[Cell]) -> dict[str, str]:
    """Return note -> letter; equal notes share one letter.

    >>> _note_letters([Cell(note="misprint"), Cell(), Cell(note="misprint")])
    {'misprint': 'a'}
    """
    notes = dict.fromkeys(cell.note for cell in cells if cell.note)
    return {note: _letters(index) for index, note in enumerate(notes)}


def _notes(table: Table, letters: dict[str, str]) -> list[tuple[str, str]]:
    """Return the notes of cells by letter, then notes of the table that do not repeat them."""
    of_cells = [(letter, note) for note, letter in letters.items()]
    # The table's note is "line, x8: note" where that of its cell is "note".
    repeated = tuple(f": {note}" for note in letters)
    others = [note for note in table.notes if not f": {note}".endswith(repeated)]
    return [*of_cells, *(("", note) for note in others)]


def _letters(index: int) -> str:
    """Return a letter, and two letters from the 27th note on.

    >>> _letters(0), _letters(25), _letters(26)
    ('a', 'z', 'aa')
    """
    rest, last = divmod(index, 26)
    return (_letters(rest - 1) if rest else "") + chr(ord("a") + last)


def _legend(table: Table, cells: Sequence[Cell], seeds: int) -> str:
    parts = [table.unit]
    if seeds > 1:
        parts.append(f"mean ± standard deviation over {_seeds_text(seeds)}")
    elif seeds == 1 and table.reference:
        parts.append("one seed, so no spread and no verdict")
    if any(cell.published is not None for cell in cells):
        parts.append("“paper”: the published number")
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


_ANSWERS = {
    "seen": "The paper's effect is seen.",
    "seen in part": "The paper's effect is seen in part.",
    "not seen": "The paper's effect is not seen.",
    "not judged": "These results cannot show whether the paper's effect exists.",
}


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The answer for one data set, in sentences.

    Attributes:
        title: name of the data set.
        conclusion: see `PaperEffect.conclusion`.
        answer: the conclusion as a sentence.
        sentences: the numbers behind it.
    """

    title: str
    conclusion: str
    answer: str
    sentences: Sequence[str]


def headline(folder: ResultsFolder) -> Headline:
    """Make the headline of a results folder from its verdicts."""
    gains = [judged for table in folder.log_tables for judged in gain_cells(table)]
    of_log, conclusion = _gains(gains), gain_conclusion(gains)
    of_data: list[str] = []
    if folder.has_data_tables:
        cells = auc_cells([table for table in folder.tables if not table.on_log])
        found = paper_effect(cells)
        conclusion = found.conclusion
        of_data = [*_against_paper(found), *_all(cells), *_time(folder)]
    return Headline(
        title=folder.title,
        conclusion=conclusion,
        answer=_ANSWERS[conclusion],
        sentences=[*of_data, *of_log, *_runs(folder), *_replays(folder)],
    )


def gain_conclusion(gains: Sequence[JudgedCell]) -> str:
    """Say whether the gains that Monolith published are seen: of all, of most, or of fewer."""
    published = [judged for judged in gains if judged.paper is not None]
    better = count_verdicts(published, "better")
    if not published:
        return "not judged"
    if 2 * better <= len(published):
        return "not seen"
    return "seen" if better == len(published) else "seen in part"


def _gains(gains: Sequence[JudgedCell]) -> list[str]:
    """Compare gains with Monolith's, and count those of each table."""
    published = [judged for judged in gains if judged.paper is not None]
    sentences = []
    if published:
        better, noise, worse = (count_verdicts(published, k) for k in ("better", "noise", "worse"))
        sentences.append(
            f"Where Monolith's AUC rises over that without syncs, {_of(better, published)} here: "
            f"{better} better, {noise} within noise, {worse} worse."
        )
    for table in dict.fromkeys(judged.table.name for judged in gains):
        sentences += _largest_gains([judged for judged in gains if judged.table.name == table])
    return sentences


def _largest_gains(gains: Sequence[JudgedCell]) -> list[str]:
    gain, loss = largest_changes(gains)
    where = gains[0].table.title.partition(":")[0]
    named = [("gain", gain), ("loss", loss)]
    found = [
        f"largest {name} {_gain_text(judged)} ({judged.row})" for name, judged in named if judged
    ]
    return [f"{where}: {'; '.join(found) or 'no change beyond noise'}."]


def _gain_text(judged: JudgedCell) -> str:
    paper = "" if judged.paper is None else f", in the paper {signed(judged.paper, 2)}"
    return f"{signed(judged.difference or 0.0, 2)} AUC points{paper}"


def _against_paper(found: PaperEffect) -> list[str]:
    if not (found.kept or found.lost):
        return [
            "No number with a verdict has a published number to compare with; a verdict needs "
            "several seeds of a number and of its reference."
        ]
    return [_kept(found.kept), _lost(found.lost)]


def _kept(cells: Sequence[JudgedCell]) -> str:
    if not cells:
        return "No AUC that holds in the paper has a verdict here."
    better, noise, worse = (count_verdicts(cells, k) for k in ("better", "noise", "worse"))
    return (
        f"Where the paper's AUC holds (no worse than the reference), "
        f"{_of(better + noise, cells)} here: {better} better, {noise} within noise, {worse} worse."
    )


def _lost(cells: Sequence[JudgedCell]) -> str:
    if not cells:
        return "No AUC that falls in the paper has a verdict here."
    better, noise, worse = (count_verdicts(cells, k) for k in ("better", "noise", "worse"))
    return (
        f"Where the paper's AUC falls, {_of(worse, cells)} here: {worse} worse, "
        f"{noise} within noise, {better} better."
    )


def _of(some: int, every: Sequence[JudgedCell]) -> str:
    verb = "does so" if some == 1 else "do so"
    return f"{some} of {len(every)} {verb}"


def _all(cells: Sequence[JudgedCell]) -> list[str]:
    if not cells:
        return []
    better, noise, worse = (count_verdicts(cells, k) for k in ("better", "noise", "worse"))
    whole = (
        f"All {len(cells)} AUCs that have a verdict: {better} better than the "
        f"reference, {noise} within noise, {worse} worse."
    )
    gain, loss = largest_changes(cells)
    named = [("Largest gain", gain), ("Largest loss", loss)]
    return [whole, *(f"{name}: {_describe(judged)}." for name, judged in named if judged)]


def _describe(judged: JudgedCell) -> str:
    decimals = judged.table.decimals
    paper = "" if judged.paper is None else f", in the paper {signed(judged.paper, decimals)}"
    where = f"{judged.row} at {judged.column}, {judged.table.title.partition(':')[0]}"
    return f"{signed(judged.difference or 0.0, decimals)} AUC points{paper} ({where})"


def _time(folder: ResultsFolder) -> list[str]:
    found = largest_speedup(folder.tables)
    if found is None:
        return []
    judged, times = found
    return [
        f"Largest gain in training time: {times:.1f} times as fast as {judged.table.reference} "
        f"({judged.row} at {judged.column}, {judged.table.title.partition(':')[0]})."
    ]


def _runs(folder: ResultsFolder) -> list[str]:
    runs = folder.results
    if not runs:
        return []
    diverged = sum(run.status == "diverged" for run in runs)
    minutes = sum(run.seconds for run in runs) / 60
    whole = f"{minutes:.0f} minute{'s' * (round(minutes) != 1)}"
    time = whole if minutes < 60 else f"{minutes / 60:.1f} hours"
    seeds = len({run.seed for run in runs})
    return [
        f"{len(runs):,} run{'s' * (len(runs) > 1)} with {seeds} seed{'s' * (seeds > 1)}, "
        f"{diverged} diverged, {time} of training."
    ]


def _replays(folder: ResultsFolder) -> list[str]:
    runs = {replay.run_id: replay for replay in folder.replays}.values()
    if not runs:
        return []
    diverged = sum(run.status == "diverged" for run in runs)
    minutes, seeds = sum(run.seconds for run in runs) / 60, len({run.seed for run in runs})
    return [
        f"{len(runs):,} replay{'s' * (len(runs) > 1)} with {seeds} seed{'s' * (seeds > 1)}, "
        f"{diverged} diverged, {minutes:.0f} minute{'s' * (round(minutes) != 1)}."
    ]
