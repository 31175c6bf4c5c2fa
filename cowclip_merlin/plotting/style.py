"""Define the style of figures: colors, markers and lines that differ in print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cowclip_merlin.plotting.colors import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION

STYLES: tuple[dict[str, str], ...] = (
    {"color": BLUE, "marker": "o", "linestyle": "-"},
    {"color": VERMILION, "marker": "s", "linestyle": "--"},
    {"color": BLACK, "marker": "^", "linestyle": ":"},
    {"color": GREEN, "marker": "D", "linestyle": "-."},
    {"color": PURPLE, "marker": "v", "linestyle": "-"},
    {"color": ORANGE, "marker": "P", "linestyle": "--"},
)


@contextmanager
def looks() -> Iterator[None]:
    """Set Matplotlib so that equal numbers give equal figures."""
    import matplotlib

    settings = {
        "svg.hashsalt": "cowclip",
        "lines.linewidth": 1.3,
        "lines.markersize": 4,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.linewidth": 0.4,
        "grid.alpha": 0.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        yield


def new_figure(width: float, height: float) -> Any:
    """Create an empty figure of this size in inches, without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def style(index: int, points: int) -> dict[str, Any]:
    """Return line and marker of the n-th curve; a long curve has markers at some points only."""
    return STYLES[index % len(STYLES)] | {"markevery": max(1, points // 12)}
