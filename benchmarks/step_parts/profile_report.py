"""What `step.py profile` prints."""

from __future__ import annotations

from collections.abc import Sequence

from cowclip_merlin.types import JsonObject

TOP, WIDTH = 20, 74  # operations and kernels shown, and characters of their names

OVERLAP = """Operations run on several threads at once, so the sum of their times can exceed the
time of the step. On a GPU they launch kernels, whose times are listed below."""


def text(result: JsonObject) -> str:
    """Format the whole result, batch by batch."""
    return "\n\n".join(_batch(result, found) for found in result["results"])


def _batch(result: JsonObject, found: JsonObject) -> str:
    profile = found["profile"]
    title = (
        f"{result['model']}, {result['update']}, {result['precision']}, "
        f"{result['vocabulary']:,} ids, batch {found['batch']:,}, "
        f"{found['distinct_rows']:,.0f} distinct rows"
    )
    total = [{"name": "all operations", **_sum(profile["groups"])}]
    parts = [
        f"{title}\n{'=' * len(title)}",
        times(found),
        f"{profile['steps']} profiled steps of {profile['ms']:.2f} ms",
        table("operations", profile["groups"] + total),
        OVERLAP,
        table("longest operations", profile["operations"][:TOP]),
        *(_gpu(gpu) for gpu in profile["gpus"]),
    ]
    if result["device"] == "gpu" and not any(gpu["kernels"] for gpu in profile["gpus"]):
        parts.append("The profiler saw no kernel on the GPU: CUPTI is missing or not permitted.")
    return "\n\n".join(parts)


def times(found: JsonObject) -> str:
    """Format the times of bare MLP and step."""
    return "\n".join(
        [
            _timed("bare MLP", found["bare_mlp"]) + ", in float32",
            _timed("step", found["step"]),
            f"the step takes {found['step_to_mlp']:.2f} times the bare MLP",
        ]
    )


def _timed(name: str, found: JsonObject) -> str:
    return (
        f"{name:<16}{found['ms']:>10.2f} ms   median of {found['steps']} steps; of turns "
        f"{found['fastest']:.2f} to {found['slowest']:.2f}"
    )


def table(head: str, rows: Sequence[JsonObject]) -> str:
    """Format names, milliseconds and calls per step."""
    lines = [f"{head:<{WIDTH}}{'ms per step':>12}{'calls per step':>14}"]
    lines += [
        f"{shortened(row['name']):<{WIDTH}}{row['ms']:>12.3f}{row['calls']:>14.1f}" for row in rows
    ]
    return "\n".join(lines)


def shortened(name: str) -> str:
    """Shorten a long name near its front, because layer and operation are at its end.

    >>> len(shortened("a" * 100)), shortened("Sum:Sum")
    (72, 'Sum:Sum')
    """
    most, front = WIDTH - 2, WIDTH // 3
    return name if len(name) <= most else f"{name[:front]}...{name[front + 3 - most :]}"


def _gpu(gpu: JsonObject) -> str:
    head = f"{gpu['device']}: busy for {gpu['busy_ms']:.3f} ms of a step, {gpu['busy_share']:.0%}"
    kernels = {"name": "all kernels", **_sum(gpu["kernels"])}
    copies = gpu["copies"] or [{"name": "none", "ms": 0.0, "calls": 0.0}]
    return "\n\n".join(
        [head, table("copies", copies), table("kernels", [*gpu["kernels"][:TOP], kernels])]
    )


def _sum(rows: Sequence[JsonObject]) -> dict[str, float]:
    return {key: sum(row[key] for row in rows) for key in ("ms", "calls")}
