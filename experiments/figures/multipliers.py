"""Tables 2, 3 and 4 as a figure: a measure against the multiple of the base batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cowclip_merlin.experiments.figures.lines import (
    Line,
    batch_axis,
    legend_below,
    panels,
    plain,
    style,
)


def draw_multipliers(
    ours: Sequence[Line], published: Sequence[Line] = (), *, measure: str = "test AUC, %"
) -> Any:
    """A measure against the batch as a multiple of the base batch, ours beside the paper's.

    The two panels have scales of their own: on another data set the heights differ, and what is
    to be compared is the shape. Bars span the least to the most of the seeds.

    Args:
        ours: lines over multipliers.
        published: the paper's numbers, with the labels of ours; no second panel if empty.
        measure: label of the vertical axis.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: there is nothing to draw.

    >>> line = Line(label="sqrt", x=(1, 8), runs=((78.0, 77.0),))
    >>> len(draw_multipliers([line], [line]).axes)
    2
    """
    if not ours:
        raise ValueError("no runs to draw by multiplier")
    shown = {"measured here": ours, "published": published} if published else {"": ours}
    labels = list(dict.fromkeys(line.label for lines in shown.values() for line in lines))
    figure, axes = panels(len(shown))
    for one, (title, lines) in zip(axes, shown.items()):
        for line in lines:
            _draw(one, line, style(labels.index(line.label)))
        one.set_title(title, fontsize=10)
        batch_axis(one, [x for line in lines for x in line.x], times=True)
        one.set(xlabel="batch, as a multiple of the base batch", ylabel=plain(measure))
    several = any(len(line.runs) > 1 for line in ours)
    fullest = max(axes, key=lambda one: len(one.get_legend_handles_labels()[1]))
    legend_below(figure, fullest, title="bars: least to most of the seeds" if several else "")
    return figure


def _draw(axes: Any, line: Line, look: dict[str, Any]) -> None:
    means, (low, high) = line.means(), line.range()
    error = [
        [m - least for m, least in zip(means, low)],
        [most - m for m, most in zip(means, high)],
    ]
    bars = error if len(line.runs) > 1 else None
    axes.errorbar(
        line.x, means, yerr=bars, label=plain(line.label), capsize=2.5, elinewidth=1, **look
    )
