"""What is drawn, as plain numbers, and in which style."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cowclip_merlin.plotting.colors import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION

# Markers and dashes tell lines apart in print. Seven colours and four dashes have no common
# divisor, so pairs repeat after 28 lines only.
COLOURS = (BLUE, VERMILION, BLACK, GREEN, PURPLE, ORANGE, SKY_BLUE)
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))


@dataclass(frozen=True, kw_only=True)
class Line:
    """Runs that differ in their seed only, measured at the same places.

    Attributes:
        label: as the legend shows it.
        x: where: epochs, batches or multipliers, rising.
        runs: one sequence of values per seed, as long as `x`; NaN where nothing was measured.

    Raises:
        ValueError: a run has another length than `x`, or there is none.

    >>> Line(label="baseline", x=(1, 2), runs=((0.7, 0.8), (0.9, 0.8))).means()
    [0.8, 0.8]
    """

    label: str
    x: Sequence[float]
    runs: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if not self.runs or any(len(run) != len(self.x) for run in self.runs):
            raise ValueError(f"{self.label}: every run must have {len(self.x)} values")

    def values(self) -> list[list[float]]:
        """Per place the finite values of all seeds."""
        return [[v for v in column if math.isfinite(v)] for column in zip(*self.runs)]

    def means(self) -> list[float]:
        """Per place the mean of the finite values; NaN if there is none."""
        return [statistics.fmean(v) if v else math.nan for v in self.values()]

    def range(self) -> tuple[list[float], list[float]]:
        """Per place the least and the most of the finite values; NaN if there is none."""
        values = [v or [math.nan] for v in self.values()]
        return [min(v) for v in values], [max(v) for v in values]


def style(place: int) -> dict[str, Any]:
    """Colour, marker and dashes of the line in this place of the legend.

    >>> style(0)["color"], style(7)["color"], style(0)["linestyle"] == style(7)["linestyle"]
    ('#0072B2', '#0072B2', False)
    """
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place % len(DASHES)],
        "markersize": 4.5,
        "linewidth": 1.4,
    }


def plain(text: str) -> str:
    """A text that matplotlib does not take for a formula.

    >>> print(plain("5$ and 6$"))
    5\\$ and 6\\$
    """
    return text.replace("$", r"\$")


def number_of_rows(batch: float) -> str:
    """A batch as the paper writes it; "K" means 1024.

    >>> number_of_rows(512), number_of_rows(131072), number_of_rows(1536)
    ('512', '128K', '1536')
    """
    whole = batch >= 1024 and batch % 1024 == 0
    return f"{batch / 1024:.0f}K" if whole else f"{batch:g}"


def panels(count: int, *, width: float = 4.0, height: float = 3.4) -> tuple[Any, list[Any]]:
    """A figure of so many panels, two in a row; one panel alone is wider."""
    from matplotlib.figure import Figure

    columns, rows = min(count, 2), math.ceil(count / 2)
    size = (6.4 if count == 1 else width * columns, height * (1 + 0.8 * (rows - 1)))
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(wspace=0.05)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in grid[count:]:
        unused.remove()
    for one in grid[:count]:
        one.grid(True, which="major", linewidth=0.4, alpha=0.5)
        one.tick_params(labelsize=9)
        one.spines[["top", "right"]].set_visible(False)
    return figure, grid[:count]


def draw_line(axes: Any, line: Line, look: dict[str, Any]) -> None:
    """Plot the means of a line, and the range of its seeds as a band."""
    axes.plot(line.x, line.means(), label=plain(line.label), **look)
    if len(line.runs) > 1:
        low, high = line.range()
        axes.fill_between(line.x, low, high, color=look["color"], alpha=0.18, linewidth=0)


def legend_below(figure: Any, axes: Any, *, title: str = "") -> None:
    """One legend for all panels, below them, where it hides no point."""
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


def batch_axis(axes: Any, places: Sequence[float], *, times: bool = False) -> None:
    """A logarithmic axis with a tick at each batch, or at each multiplier as "8x"."""
    ticks = sorted(set(places))
    axes.set_xscale("log", base=2)
    names = [f"{t:g}x" if times else number_of_rows(t) for t in ticks]
    axes.set_xticks(ticks, names)
    axes.set_xticks([], minor=True)
    if len(ticks) > 7:
        axes.tick_params(axis="x", rotation=45)
