"""Draw Tables 2, 3 and 4 as a figure: a measure against the multiple of the base batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cowclip_merlin.experiments.figures.curve import (
    Curve,
    batch_axis,
    escape_dollars,
    legend_below,
    panels,
)
from cowclip_merlin.plotting.style import style_of_many

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_multipliers(
    ours: Sequence[Curve], published: Sequence[Curve] = (), *, measure: str = "test AUC, %"
) -> Figure:
    """Draw a measure against the multiple of the base batch, ours next to the paper's.

    Each panel has its own scale: on another data set the heights differ, so compare the shapes.
    Bars span the minimum to the maximum of the seeds.

    Args:
        ours: curves over multipliers.
        published: the paper's numbers with the same labels; if empty, omit the second panel.
        measure: label of the vertical axis.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: if there are no data to draw.

    >>> curve = Curve(label="sqrt", x=(1, 8), runs=((78.0, 77.0),))
    >>> len(draw_multipliers([curve], [curve]).axes)
    2
    """
    if not ours:
        raise ValueError("no runs to draw by multiplier")
    shown = {"measured here": ours, "published": published} if published else {"": ours}
    labels = list(dict.fromkeys(curve.label for curves in shown.values() for curve in curves))
    figure, axes = panels(len(shown))
    for one, (title, curves) in zip(axes, shown.items()):
        for curve in curves:
            _draw(one, curve, style_of_many(labels.index(curve.label)))
        one.set_title(title, fontsize=10)
        batch_axis(one, [x for curve in curves for x in curve.x], times=True)
        one.set(xlabel="batch, as a multiple of the base batch", ylabel=escape_dollars(measure))
    several = any(len(curve.runs) > 1 for curve in ours)
    fullest = max(axes, key=lambda one: len(one.get_legend_handles_labels()[1]))
    legend_below(figure, fullest, title="bars: minimum to maximum of the seeds" if several else "")
    return figure


def _draw(axes: Axes, curve: Curve, look: dict[str, Any]) -> None:
    means, (low, high) = curve.means(), curve.range()
    error = [
        [m - least for m, least in zip(means, low)],
        [most - m for m, most in zip(means, high)],
    ]
    bars = error if len(curve.runs) > 1 else None
    axes.errorbar(
        curve.x,
        means,
        yerr=bars,
        label=escape_dollars(curve.label),
        capsize=2.5,
        elinewidth=1,
        **look,
    )
