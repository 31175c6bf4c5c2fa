"""Draw Figures 5 and 6: test AUC, log loss and train loss by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cowclip_merlin.experiments.figures.curve import (
    Curve,
    draw_curve,
    escape_dollars,
    legend_below,
    panels,
)
from cowclip_merlin.plotting.style import style_of_many

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_epochs(measures: Mapping[str, Sequence[Curve]]) -> Figure:
    """Draw one panel per measure: the mean over seeds by epoch, and their range as a band.

    Args:
        measures: label of the vertical axis -> curves over epochs, counted from 1. Curves with the
            same label have the same style in every panel. Equal curves are drawn once.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: if there are no data to draw.

    >>> curve = Curve(label="baseline", x=(1, 2), runs=((78.0, 79.0), (78.2, 79.1)))
    >>> len(draw_epochs({"test AUC, %": [curve]}).axes)
    1
    """
    if not any(measures.values()):
        raise ValueError("no runs to draw by epoch")
    labels = list(dict.fromkeys(curve.label for curves in measures.values() for curve in curves))
    figure, axes = panels(len(measures))
    for one, (measure, curves) in zip(axes, measures.items()):
        for curve in _unique(curves):
            draw_curve(one, curve, style_of_many(labels.index(curve.label)))
        one.set(xlabel="epoch", ylabel=escape_dollars(measure))
        _whole_epochs(one)
    seeds = max(len(curve.runs) for curves in measures.values() for curve in curves)
    title = "line: mean over seeds; band: minimum to maximum" if seeds > 1 else "one seed"
    legend_below(figure, _fullest(axes), title=title)
    return figure


def _unique(curves: Sequence[Curve]) -> list[Curve]:
    return [curve for index, curve in enumerate(curves) if curve not in curves[:index]]


def _whole_epochs(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))


def _fullest(axes: Sequence[Axes]) -> Axes:
    return max(axes, key=lambda one: len(one.get_legend_handles_labels()[1]))
