"""Draw the figure of `step.py vocabulary`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.plotting.colors import BLACK, BLUE, SKY_BLUE, VERMILION
from cowclip_merlin.plotting.style import new_figure, save_figure
from cowclip_merlin.types import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float, float, float]

# Markers and lines distinguish the curves in print.
STYLES = {
    "dense": {"color": VERMILION, "marker": "s", "linestyle": "-"},
    "exact": {"color": BLUE, "marker": "o", "linestyle": "-"},
    "lazy": {"color": BLACK, "marker": "^", "linestyle": ":"},
    "exact and its flush": {"color": SKY_BLUE, "marker": "D", "linestyle": "--"},
}


def curves(result: JsonObject, batch: int) -> dict[str, list[Point]]:
    """Return for each curve of a batch size: ids, median, minimum and maximum of milliseconds."""
    found: dict[str, list[Point]] = {}
    put_off = {r["vocabulary"]: r["ms_per_missed_step"] for r in result["flushes"]}
    for r in result["results"]:
        if r["batch"] != batch:
            continue
        point = (r["ms_per_step"], r["fastest"], r["slowest"])
        found.setdefault(r["update"], []).append((r["vocabulary"], *point))
        if r["update"] == "exact":
            whole = (x + put_off[r["vocabulary"]] for x in point)
            found.setdefault("exact and its flush", []).append((r["vocabulary"], *whole))
    return found


def draw_figure(result: JsonObject, path: Path) -> None:
    """Draw milliseconds per step by ids, one panel per batch size, both axes logarithmic."""
    import matplotlib
    from matplotlib.ticker import LogFormatter

    batches = sorted({r["batch"] for r in result["results"]})
    with matplotlib.rc_context({"lines.linewidth": 1.3}):
        figure = new_figure(0.8 + 3.6 * len(batches), 3.8)
        panels = figure.subplots(1, len(batches), sharey=True, squeeze=False)[0]
        for axes, batch in zip(panels, batches, strict=True):
            _draw(axes, curves(result, batch))
            axes.set(xscale="log", yscale="log", xlabel="ids", title=f"batch {batch:,}")
            # 40, not 4 x 10^1, because readers read milliseconds from this axis.
            axes.yaxis.set_major_formatter(LogFormatter())
            axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
            axes.grid(True, which="major", linewidth=0.4, alpha=0.5)
        panels[0].set_ylabel("ms per step")
        panels[0].legend(title="update", fontsize=8)
        save_figure(figure, path)


def _draw(axes: Axes, lines: dict[str, list[Point]]) -> None:
    for name, points in lines.items():
        ids, median, least, most = zip(*points, strict=True)
        spread = [
            [m - low for m, low in zip(median, least, strict=True)],
            [high - m for m, high in zip(median, most, strict=True)],
        ]
        axes.errorbar(
            ids, median, yerr=spread, markersize=4, capsize=2, elinewidth=0.8, label=name,
            **STYLES[name],
        )  # fmt: skip
