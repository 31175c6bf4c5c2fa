"""Draw Figure 1: time of an epoch and of a step against the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cowclip_merlin.experiments.figures.curve import (
    Curve,
    batch_axis,
    draw_curve,
    legend_below,
    panels,
)
from cowclip_merlin.experiments.planning.sizing import PAPER_ROWS
from cowclip_merlin.plotting.style import style_of_many

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# 10 epochs of DeepFM on Criteo on one V100: the published minutes as seconds per epoch.
PAPER_EPOCH_SECONDS: Mapping[int, float] = {
    1024 * 2**i: minutes * 60 / 10 for i, minutes in enumerate((768, 390, 204, 102, 48, 27, 15, 9))
}


def paper_times() -> Curve:
    """Return the paper's seconds per epoch by batch."""
    return Curve(
        label="paper, one V100",
        x=tuple(PAPER_EPOCH_SECONDS),
        runs=(tuple(PAPER_EPOCH_SECONDS.values()),),
    )


def step_ms(curve: Curve, rows: int) -> Curve:
    """Compute milliseconds per step from seconds per epoch and the rows of an epoch.

    >>> [round(ms) for ms in step_ms(paper_times(), PAPER_ROWS).runs[0]][::7]
    [114, 171]
    """
    steps = [math.ceil(rows / batch) for batch in curve.x]
    runs = [[1000 * s / n for s, n in zip(run, steps)] for run in curve.runs]
    return Curve(label=curve.label, x=curve.x, runs=runs)


def relative(curve: Curve, unit: float) -> Curve:
    """Divide the curve by a number of seconds."""
    runs = [[seconds / unit for seconds in run] for run in curve.runs]
    return Curve(label=curve.label, x=curve.x, runs=runs)


def draw_times(ours: Sequence[Curve], *, rows: int) -> Figure:
    """Draw relative time of an epoch (left) and milliseconds of a step (right) by batch.

    All of our curves are relative to the smallest batch of the first one, which shows a cheaper
    update at the small batch. The paper's curve is relative to its own smallest batch.

    Args:
        ours: seconds per epoch by batch.
        rows: rows of an epoch, to compute the number of steps.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: if there are no data to draw.

    >>> figure = draw_times([Curve(label="dense", x=(256, 512), runs=((9.0, 5.0),))], rows=10_000)
    >>> [axes.get_xscale() for axes in figure.axes]
    ['log', 'log']
    """
    if not ours:
        raise ValueError("no times to draw")
    figure, (left, right) = panels(2)
    unit = ours[0].means()[0]
    paper = (paper_times(), PAPER_EPOCH_SECONDS[1024], PAPER_ROWS)
    curves = [*((curve, unit, rows) for curve in ours), paper]
    for index, (curve, one, count) in enumerate(curves):
        draw_curve(left, relative(curve, one), style_of_many(index))
        draw_curve(right, step_ms(curve, count), style_of_many(index))
    batches = [x for curve, _, _ in curves for x in curve.x]
    for axes, name in ((left, "time of an epoch, relative"), (right, "ms per step")):
        axes.set_yscale("log")
        batch_axis(axes, batches)
        axes.set(xlabel="batch", ylabel=name)
        _plain_numbers(axes)
    legend_below(figure, left)
    return figure


def _plain_numbers(axes: Axes) -> None:
    """Write 40, not 4 x 10^1, because readers read numbers from this axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    low, high = axes.get_ylim()
    marks = (1.0,) if high / low > 1000 else (1.0, 2.0, 5.0)
    # A short axis may contain no power of ten, nor 2 or 5 times a power of ten.
    short = high / low < 10
    locator = MaxNLocator(6) if short else LogLocator(subs=marks, numticks=20)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks([], minor=True)
