"""Draw the paper's Figure 4: gradient norms of a batch's rows, also divided by their count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.plotting.style import STYLES, figure_settings, new_figure
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUPS = ((1, 1, "once"), (2, 9, "2 to 9 times"), (10, None, "10 times or more"))
BINS = 40


def figure_4(cnt: npt.ArrayLike, g_norm: npt.ArrayLike) -> Figure:
    """Draw the paper's Figure 4: (a) gradient norms, (b) gradient norms divided by `cnt`.

    There is one curve for each group of ids by their occurrences in the batch. In (a) the groups
    differ, since a row's gradient is a sum over its occurrences. In (b) the norm is divided by
    that count. The logarithmic axis omits gradients of norm 0; the legend's title gives their
    number.

    Args:
        cnt: occurrences of each row in the batch, [u]; the figure leaves out rows with 0.
        g_norm: norm of each row's data gradient, [u]; see `gradient_norms` and `probe_run`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if the two differ in length, or every count is 0.

    >>> len(figure_4([1, 3, 0], [0.1, 0.4, 0.0]).axes)
    2
    """
    cnt, g_norm = _present_rows(np.asarray(cnt), np.asarray(g_norm, np.float64))
    zero = int((g_norm == 0).sum())
    cnt, g_norm = cnt[g_norm > 0], g_norm[g_norm > 0]
    with figure_settings():
        figure = new_figure(7.6, 3.4)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, values, name in zip(
            panels, (g_norm, g_norm / cnt), ("(a)  ||g||", "(b)  ||g|| / cnt")
        ):
            _draw(axes, values, cnt)
            axes.set(xlabel=name[5:], title=name, xscale="log")
        panels[0].set_ylabel("rows of the group (%)")
        title = "occurrences in the batch" + (f" ({zero:,} rows of norm 0 left out)" * bool(zero))
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=len(GROUPS), title=title)
    return figure


def _present_rows(
    cnt: Array, g_norm: npt.NDArray[np.float64]
) -> tuple[Array, npt.NDArray[np.float64]]:
    """Return the counts and norms of the rows that are in the batch."""
    if cnt.shape != g_norm.shape:
        raise ValueError(f"{cnt.shape} counts but {g_norm.shape} norms")
    present = cnt > 0
    if not present.any():
        raise ValueError("no row is in the batch")
    return cnt[present], g_norm[present]


def _draw(axes: Axes, values: npt.NDArray[np.float64], cnt: Array) -> None:
    """Draw the share of each group's rows by value, in bins of equal logarithmic width."""
    if not len(values):
        return
    low, high = np.log10(values.min()), np.log10(values.max())
    edges = np.logspace(low - 0.05, high + 0.05, BINS + 1)
    for (least, most, label), look in zip(GROUPS, STYLES):
        mine = values[(cnt >= least) & (cnt <= (most or np.inf))]
        shares = 100 * np.histogram(mine, edges)[0] / max(len(mine), 1)
        middle = np.sqrt(edges[1:] * edges[:-1])
        axes.plot(middle, shares, label=f"{label}: {len(mine):,} rows", markevery=4, **look)
