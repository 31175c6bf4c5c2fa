"""Format tables as text for a terminal."""

from __future__ import annotations

from cowclip_merlin.experiments.tables.table import Cell, Table


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
    legend = _legend(table)
    head = [table.title, *([table.data] if table.data else [])]
    missing = [f"not run: {line}" for line in table.missing]
    return "\n".join([*head, "", *text, "", legend, *table.notes, *missing])


def markdown_table(table: Table) -> str:
    """Format the table as Markdown, with its title, its legend, its notes and its command."""
    head, *body = [[text.replace("|", "\\|") for text in line] for line in _lines(table)]
    rows = [head, ["---", *["---:"] * len(table.columns)], *body]
    missing = [f"not run: {line}" for line in table.missing]
    below = [_legend(table), *table.notes, *missing, f"`{table.command}`"]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    text = [f"### {table.title}", "", f"{table.data}.", "", *lines, ""]
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


def _legend(table: Table) -> str:
    """Explain the parts of the cells."""
    cells = [cell for _, row in table.rows for cell in row]
    parts = [table.unit]
    if any(cell.spread is not None for cell in cells):
        parts.append("mean ± standard deviation over seeds")
    if any(cell.published is not None for cell in cells):
        parts.append("[published]")
    if any(cell.verdict for cell in cells):
        parts.append(f"against {table.reference}: + better, - worse, = within noise")
    return "; ".join(parts)
