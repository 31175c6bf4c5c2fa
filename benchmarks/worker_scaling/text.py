"""Format the results of `workers.py` as Markdown."""

from __future__ import annotations

from typing import Any

from harness.tables import markdown

NAMES = {"machines": "machines", "gpus": "GPUs"}


def text(result: dict[str, Any]) -> str:
    """Format all parts of the result."""
    parts = []
    if result["measured"]:
        parts += [measured_table(result["measured"])]
    if result["computed"]:
        for kind, name in NAMES.items():
            parts += [_caption(result["computed"], kind), computed_table(result["computed"], kind)]
            parts[-1] = parts[-1].replace("| workers |", f"| {name} |", 1)
    return "\n\n".join(parts)


def measured_table(measured: dict[str, Any]) -> str:
    """Format the runs: one row for each case."""
    head = (
        "batch", "tables", "workers", "ms per step", "speed-up", "MB per step", "formula, MB",
        "measured / formula", "rows alone",
    )  # fmt: skip
    return markdown(head, "rlrrrrrrr", [_measured_row(r) for r in measured["results"]])


def _measured_row(r: dict[str, Any]) -> tuple[str, ...]:
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


def computed_table(computed: dict[str, Any], kind: str) -> str:
    """Format the computed steps: one row for each number of ids and of workers.

    Args:
        computed: result of `model.compute`.
        kind: "machines" or "gpus".
    """
    found = {(r["vocabulary"], r["workers"], r["tables"]): r for r in computed[kind]["results"]}
    head = ["ids", "workers", "step alone, ms", "speed-up without exchange"]
    for tables in ("mirrored", "sharded"):
        head += [f"{tables}: MB", "ms", "speed-up"]
    rows = []
    for vocabulary, workers in dict.fromkeys(key[:2] for key in found):
        mirrored, sharded = (found[vocabulary, workers, t] for t in ("mirrored", "sharded"))
        rows.append(
            (
                f"{vocabulary:,}",
                str(workers),
                f"{mirrored['step_ms']:.1f}",
                f"{mirrored['speed_up_without_exchange']:.1f}",
                *_computed_cells(mirrored),
                *_computed_cells(sharded),
            )
        )
    return markdown(head, "r" * len(head), rows)


def _computed_cells(r: dict[str, Any]) -> tuple[str, str, str]:
    return f"{r['sent_bytes'] / 1e6:.1f}", f"{r['ms']:.1f}", f"{r['speed_up']:.1f}"


def _caption(computed: dict[str, Any], kind: str) -> str:
    network = computed[kind]["network"]
    return (
        f"Computed, not measured: {NAMES[kind]}, global batch {computed['global_batch']:,}. "
        f"Assumed: {network['bandwidth']:g} GB/s, {network['latency']:g} ms per exchange, "
        f"{network['hop']:g} ms per further hop."
    )
