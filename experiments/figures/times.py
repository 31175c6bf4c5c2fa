"""Figure 1: time of an epoch and of a step against the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cowclip_merlin.experiments.figures.lines import (
    Line,
    batch_axis,
    draw_line,
    legend_below,
    panels,
    style,
)
from cowclip_merlin.experiments.regime import PAPER_ROWS

# 10 epochs of DeepFM on Criteo on one V100, the published minutes as seconds an epoch.
PAPER_EPOCH_SECONDS: Mapping[int, float] = {
    1024 * 2**i: minutes * 60 / 10 for i, minutes in enumerate((768, 390, 204, 102, 48, 27, 15, 9))
}


def paper_times() -> Line:
    """The paper's seconds an epoch by batch."""
    return Line(
        label="paper, one V100",
        x=tuple(PAPER_EPOCH_SECONDS),
        runs=(tuple(PAPER_EPOCH_SECONDS.values()),),
    )


def step_ms(line: Line, rows: int) -> Line:
    """Milliseconds a step from seconds an epoch of so many rows.

    >>> [round(ms) for ms in step_ms(paper_times(), PAPER_ROWS).runs[0]][::7]
    [114, 171]
    """
    steps = [math.ceil(rows / batch) for batch in line.x]
    runs = [[1000 * s / n for s, n in zip(run, steps)] for run in line.runs]
    return Line(label=line.label, x=line.x, runs=runs)


def relative(line: Line, unit: float) -> Line:
    """The line divided by a number of seconds."""
    runs = [[seconds / unit for seconds in run] for run in line.runs]
    return Line(label=line.label, x=line.x, runs=runs)


def draw_times(ours: Sequence[Line], *, rows: int, paper: bool = True) -> Any:
    """Left: relative time of an epoch; right: milliseconds of a step; both against the batch.

    All of our lines are relative to the first one's smallest batch, so that a cheaper update at
    the small batch shows as such; the paper's is relative to its own.

    Args:
        ours: seconds of an epoch by batch.
        rows: of an epoch, from which the number of steps follows.
        paper: also draw the paper's line.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: there is nothing to draw.

    >>> figure = draw_times([Line(label="dense", x=(256, 512), runs=((9.0, 5.0),))], rows=10_000)
    >>> [axes.get_xscale() for axes in figure.axes]
    ['log', 'log']
    """
    if not ours:
        raise ValueError("no times to draw")
    figure, (left, right) = panels(2)
    unit = ours[0].means()[0]
    lines = [(line, unit, rows) for line in ours]
    if paper:
        lines.append((paper_times(), PAPER_EPOCH_SECONDS[1024], PAPER_ROWS))
    for place, (line, one, count) in enumerate(lines):
        draw_line(left, relative(line, one), style(place))
        draw_line(right, step_ms(line, count), style(place))
    batches = [x for line, _, _ in lines for x in line.x]
    for axes, name in ((left, "time of an epoch, relative"), (right, "ms a step")):
        axes.set_yscale("log")
        batch_axis(axes, batches)
        axes.set(xlabel="batch", ylabel=name)
        _plain_numbers(axes)
    legend_below(figure, left)
    return figure


def _plain_numbers(axes: Any) -> None:
    """40 and not 4 x 10^1: these numbers are read off."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    low, high = axes.get_ylim()
    marks = (1.0,) if high / low > 1000 else (1.0, 2.0, 5.0)
    # Powers of ten and their parts may all lie outside a short axis.
    short = high / low < 10
    locator = MaxNLocator(6) if short else LogLocator(subs=marks, numticks=20)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks([], minor=True)
