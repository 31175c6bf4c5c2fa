"""Format tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(head: Sequence[str], alignment: str, rows: Iterable[Sequence[str]]) -> str:
    """Format a table.

    Args:
        head: names of the columns.
        alignment: alignment of each column, "l" or "r".
        rows: cells of each row.

    >>> print(markdown(["who", "rows/s"], "lr", [("step", "12")]))
    | who | rows/s |
    |:--|--:|
    | step | 12 |
    """
    rules = "|".join({"l": ":--", "r": "--:"}[each] for each in alignment)
    lines = [" | ".join(cells) for cells in (head, *rows)]
    first, *others = (f"| {line} |" for line in lines)
    return "\n".join([first, f"|{rules}|", *others])
