"""Format a table for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cowclip_merlin.experiments.report.verdicts import reference_cell
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
