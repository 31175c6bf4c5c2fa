"""A table as the page shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cowclip_merlin.experiments.report.claims import reference_cell
from cowclip_merlin.experiments.tables.table import Cell, Table

MINUS = "\N{MINUS SIGN}"
SIGNS = {"better": "+", "worse": MINUS, "noise": "=", "": ""}
WORDS = {"better": "better", "worse": "worse", "noise": "within noise", "": ""}


@dataclass(frozen=True, kw_only=True)
class CellView:
    """One cell as text.

    Attributes:
        kind: class of its colour: a verdict, "reference", "absent", "text", or "" for a number
            that nothing was held against.
        value: mean, or what stands there in its place.
        spread: "±0.01", or "".
        sign: of the verdict.
        words: the verdict for those who hear the page.
        published: the paper's number, or "".
        seeds: "1 seed" where the number of seeds is not that of most cells.
        mark: letter of the note below the table, or "".
    """

    kind: str
    value: str
    spread: str = ""
    sign: str = ""
    words: str = ""
    published: str = ""
    seeds: str = ""
    mark: str = ""


@dataclass(frozen=True, kw_only=True)
class TableView:
    """One table as text.

    Attributes:
        table: what it was made from.
        anchor: id of its section.
        rows: heading and cells.
        notes: letter, or "", and text.
        legend: how to read a cell.
        wide: whether print must be small for it.
    """

    table: Table
    anchor: str
    rows: Sequence[tuple[str, Sequence[CellView]]]
    notes: Sequence[tuple[str, str]]
    legend: str
    wide: bool


def signed(value: float, places: int) -> str:
    """A number with its sign, and a minus as wide as the plus.

    >>> signed(-0.5, 1) == MINUS + "0.5", signed(0.5, 1)
    (True, '+0.5')
    """
    return f"{value:+.{places}f}".replace("-", MINUS)


def view(table: Table, *, anchor: str) -> TableView:
    """A table as text, ready for the template."""
    cells = [cell for _, row in table.rows for cell in row]
    seeds = _most(cells)
    marks = _marks(cells)
    reference = reference_cell(table)
    rows = [
        (heading, [_view(cell, table, marks, seeds, cell is reference) for cell in row])
        for heading, row in table.rows
    ]
    return TableView(
        table=table,
        anchor=anchor,
        rows=rows,
        notes=_notes(table, marks),
        legend=_legend(table, cells, seeds),
        wide=len(table.columns) > 7,
    )


def _view(
    cell: Cell, table: Table, marks: dict[str, str], seeds: int, is_reference: bool
) -> CellView:
    measured = cell.mean is not None
    places = f".{table.decimals}f"
    published = "" if cell.published is None else format(cell.published, places)
    kind = "reference" if is_reference else cell.verdict
    return CellView(
        kind=kind if measured else _kind_of(cell.text),
        value=format(cell.mean, places).replace("-", MINUS) if measured else cell.text,
        spread="" if cell.spread is None else f"±{format(cell.spread, places)}",
        sign=SIGNS[cell.verdict],
        words="the reference" if is_reference else WORDS[cell.verdict],
        published=published.replace("-", MINUS),
        seeds=_seeds(cell.runs) if measured and cell.runs != seeds else "",
        mark=marks.get(cell.note, ""),
    )


def _kind_of(text: str) -> str:
    """Whether what stands in place of a number says that there is none."""
    return "absent" if text in ("", "not run", "diverged") else "text"


def _most(cells: Sequence[Cell]) -> int:
    """The number of seeds that most measured cells have."""
    runs = Counter(cell.runs for cell in cells if cell.mean is not None)
    return runs.most_common(1)[0][0] if runs else 0


def _seeds(runs: int) -> str:
    return f"{runs} seed{'s' * (runs != 1)}"


def _marks(cells: Sequence[Cell]) -> dict[str, str]:
    """Note -> letter; equal notes share one.

    >>> _marks([Cell(note="misprint"), Cell(), Cell(note="misprint")])
    {'misprint': 'a'}
    """
    notes = dict.fromkeys(cell.note for cell in cells if cell.note)
    return {note: _letters(place) for place, note in enumerate(notes)}


def _notes(table: Table, marks: dict[str, str]) -> list[tuple[str, str]]:
    """Notes of cells by their letters, then those of the table that do not repeat one."""
    of_cells = [(letter, note) for note, letter in marks.items()]
    # A table says "line, x8: note" where its cell says "note".
    said = tuple(f": {note}" for note in marks)
    others = [note for note in table.notes if not f": {note}".endswith(said)]
    return [*of_cells, *(("", note) for note in others)]


def _letters(place: int) -> str:
    """A letter, and from the 27th on two of them.

    >>> _letters(0), _letters(25), _letters(26)
    ('a', 'z', 'aa')
    """
    rest, last = divmod(place, 26)
    return (_letters(rest - 1) if rest else "") + chr(ord("a") + last)


def _legend(table: Table, cells: Sequence[Cell], seeds: int) -> str:
    parts = [table.unit]
    if seeds > 1:
        parts.append(f"mean ± standard deviation over {_seeds(seeds)}")
    elif seeds == 1 and table.reference:
        parts.append("one seed, so no spread and no verdict")
    if any(cell.published is not None for cell in cells):
        parts.append("“paper”: the published number")
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]
