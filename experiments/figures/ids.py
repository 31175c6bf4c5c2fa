"""Draw Figure 3: how often ids occur."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.experiments.figures.curve import escape_dollars, legend_below, panels
from cowclip_merlin.plotting.colors import BLACK, SKY_BLUE
from cowclip_merlin.workflows.prepared.report import plot_frequencies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_ids(counts: Mapping[str, npt.ArrayLike]) -> Figure:
    """Draw occurrences by rank, one line per field (left), and ids by occurrences (right).

    Args:
        counts: field -> occurrences of each of its ids in the training rows, in any order; see
            `workflows.prepared.report.frequencies`. Zeros are omitted.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: if there are no ids.

    >>> len(draw_ids({"C1": [5, 1, 1], "C2": [7]}).axes)
    2
    """
    falling = {escape_dollars(field): _falling(values) for field, values in counts.items()}
    together = np.concatenate([*falling.values()]) if falling else np.zeros(0, np.int64)
    if not len(together):
        raise ValueError("no ids to draw")
    few = len(falling) <= 10
    figure, (left, right) = panels(2, width=4.2, height=3.4 if few else 4.4)
    plot_frequencies(left, falling)
    left.set(xlabel="id, by descending frequency", ylabel="occurrences in the training rows")
    _histogram(right, together)
    legend_below(figure, left, title="field")
    return figure


def _falling(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(values, dtype=np.int64)
    return np.sort(array[array > 0])[::-1]


def _histogram(axes: Axes, counts: npt.NDArray[np.int64]) -> None:
    """Draw ids by occurrences in bins that double: 1, 2 to 3, 4 to 7, ..."""
    heights = np.bincount(np.log2(counts).astype(int))
    edges = 2.0 ** np.arange(len(heights) + 1)
    axes.stairs(heights, edges, fill=True, color=SKY_BLUE, edgecolor=BLACK, linewidth=0.8)
    once = 100 * float((counts == 1).mean())
    axes.set(xscale="log", yscale="log", xlabel="occurrences, in bins that double")
    axes.set(ylabel="ids, all fields", ylim=(0.7, None))
    axes.set_title(f"{len(counts):,} ids; seen once: {once:.1f}%", fontsize=10)
