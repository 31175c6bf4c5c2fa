"""Figures 5 and 6: test AUC, log loss and train loss by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cowclip_merlin.experiments.figures.lines import (
    Line,
    draw_line,
    legend_below,
    panels,
    plain,
    style,
)


def draw_epochs(measures: Mapping[str, Sequence[Line]]) -> Any:
    """One panel per measure: the mean over seeds by epoch, and their range as a band.

    Args:
        measures: label of the vertical axis -> lines, `x` being epochs counted from 1. A line
            keeps its style in every panel by its label; equal lines are drawn once.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: there is nothing to draw.

    >>> line = Line(label="baseline", x=(1, 2), runs=((78.0, 79.0), (78.2, 79.1)))
    >>> len(draw_epochs({"test AUC, %": [line]}).axes)
    1
    """
    if not any(measures.values()):
        raise ValueError("no runs to draw by epoch")
    labels = list(dict.fromkeys(line.label for lines in measures.values() for line in lines))
    figure, axes = panels(len(measures))
    for one, (measure, lines) in zip(axes, measures.items()):
        for line in _unlike(lines):
            draw_line(one, line, style(labels.index(line.label)))
        one.set(xlabel="epoch", ylabel=plain(measure))
        _whole_epochs(one)
    seeds = max(len(line.runs) for lines in measures.values() for line in lines)
    title = "line: mean over seeds; band: least to most" if seeds > 1 else "one seed"
    legend_below(figure, _fullest(axes), title=title)
    return figure


def _unlike(lines: Sequence[Line]) -> list[Line]:
    return [line for place, line in enumerate(lines) if line not in lines[:place]]


def _whole_epochs(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))


def _fullest(axes: Sequence[Any]) -> Any:
    return max(axes, key=lambda one: len(one.get_legend_handles_labels()[1]))
