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
