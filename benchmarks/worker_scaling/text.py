"""Format the results of `workers.py` as Markdown."""

from __future__ import annotations

from typing import Any

from harness.tables import markdown


def text(result: dict[str, Any]) -> str:
    """Format the result: one row for each case."""
    head = (
        "batch", "tables", "workers", "ms per step", "speed-up", "MB per step", "formula, MB",
        "measured / formula", "rows alone",
    )  # fmt: skip
    return markdown(head, "rlrrrrrrr", [_row(r) for r in result["results"]])


def _row(r: dict[str, Any]) -> tuple[str, ...]:
    alone = r["workers"] == 1
    return (
        f"{r['batch']:,}",
        r["tables"],
        str(r["workers"]),
        f"{r['ms_per_step']:.1f}",
        f"{r['speed_up']:.2f}",
        *(_megabytes(r[name], alone) for name in ("sent_bytes", "formula_bytes")),
        *("" if alone else f"{r[name]:.3f}" for name in ("ratio", "ratio_of_rows")),
    )


def _megabytes(size: float, alone: bool) -> str:
    return "" if alone else f"{size / 1e6:.3f}"
