"""Store a curve as plain numbers, and draw it on the panels that all figures share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cowclip_merlin.plotting.style import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Runs that differ only in their seed, measured at the same values of x.

    Attributes:
        label: label in the legend.
        x: epochs, batches or multipliers, ascending.
        runs: one sequence of values per seed, as long as `x`; NaN for missing values.

    Raises:
        ValueError: if a run has another length than `x`, or there are no runs.

    >>> Curve(label="baseline", x=(1, 2), runs=((0.7, 0.8), (0.9, 0.8))).means()
    [0.8, 0.8]
    """

    label: str
    x: Sequence[float]
    runs: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        """Reject runs that cannot be drawn."""
        if not self.runs or any(len(run) != len(self.x) for run in self.runs):
            raise ValueError(f"{self.label}: every run must have {len(self.x)} values")

    def values(self) -> list[list[float]]:
        """Return for each x the finite values of all seeds."""
        return [[v for v in column if math.isfinite(v)] for column in zip(*self.runs)]

    def means(self) -> list[float]:
        """Return for each x the mean of the finite values; NaN if there are none."""
        return [statistics.fmean(v) if v else math.nan for v in self.values()]

    def range(self) -> tuple[list[float], list[float]]:
        """Return for each x the minimum and maximum of the finite values; NaN if there are none."""
        values = [v or [math.nan] for v in self.values()]
        return [min(v) for v in values], [max(v) for v in values]


def escape_dollars(text: str) -> str:
    """Escape dollar signs, so that matplotlib does not read them as a formula.

    >>> print(escape_dollars("5$ and 6$"))
    5\\$ and 6\\$
    """
    return text.replace("$", r"\$")


def batch_text(batch: float) -> str:
    """Format a batch size like the paper; "K" means 1024.

    >>> batch_text(512), batch_text(131072), batch_text(1536)
    ('512', '128K', '1536')
    """
    whole = batch >= 1024 and batch % 1024 == 0
    return f"{batch / 1024:.0f}K" if whole else f"{batch:g}"


def panels(count: int, *, width: float = 4.0, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """Create a figure and its panels, two per row; a single panel is wider."""
    columns, rows = min(count, 2), math.ceil(count / 2)
    size = (6.4 if count == 1 else width * columns, height * (1 + 0.8 * (rows - 1)))
    figure = new_figure(*size)
    figure.get_layout_engine().set(wspace=0.05)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in grid[count:]:
        unused.remove()
    for one in grid[:count]:
        one.grid(True, which="major", linewidth=0.4, alpha=0.5)
        one.tick_params(labelsize=9)
        one.spines[["top", "right"]].set_visible(False)
    return figure, grid[:count]


def draw_curve(axes: Axes, curve: Curve, look: dict[str, Any]) -> None:
    """Plot the means of a curve, and the range of its seeds as a band."""
    axes.plot(curve.x, curve.means(), label=escape_dollars(curve.label), **look)
    if len(curve.runs) > 1:
        low, high = curve.range()
        axes.fill_between(curve.x, low, high, color=look["color"], alpha=0.18, linewidth=0)


def legend_below(figure: Figure, axes: Axes, *, title: str = "") -> None:
    """Put one legend for all panels below them, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    # A letter of this size is about 5 points wide, a line and its margins 60.
    entry = 60 + 5 * max(map(len, labels), default=0)
    most = max(1, min(len(labels), int(72 * figure.get_figwidth() / entry)))
    rows = math.ceil(len(labels) / most)  # as full as each other
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=math.ceil(len(labels) / max(1, rows)) or 1,
        fontsize=9,
        title=title or None,
        title_fontsize=8.5,
        frameon=False,
        handlelength=3.2,
    )


def batch_axis(axes: Axes, batches: Sequence[float], *, times: bool = False) -> None:
    """Make the x axis logarithmic, with a tick at each batch, or at each multiplier as "8x"."""
    ticks = sorted(set(batches))
    axes.set_xscale("log", base=2)
    names = [f"{t:g}x" if times else batch_text(t) for t in ticks]
    axes.set_xticks(ticks, names)
    axes.set_xticks([], minor=True)
    if len(ticks) > 7:
        axes.tick_params(axis="x", rotation=45)
