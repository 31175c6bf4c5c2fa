"""Figure 4: norms of the gradients of embedding rows in one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.experiments.figures.lines import legend_below, panels, style

CLASSES = ((1, 1), (2, 9), (10, 99), (100, None))
BINS = 40


def draw_gradients(cnt: npt.ArrayLike, norm: npt.ArrayLike) -> Any:
    """Distribution of ||g|| of the rows in a batch, and of ||g|| / cnt, by classes of cnt.

    Args:
        cnt: occurrences of each row in the batch, whole numbers; rows with 0 are left out.
        norm: ||g|| of each row, as many as `cnt`. Rows with norm 0 have no place on the
            logarithmic axis; how many there are is written below it.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: the two differ in length, or no row is in the batch.

    >>> len(draw_gradients([1, 3, 0], [0.1, 0.4, 0.0]).axes)
    2
    """
    counts, norms = np.asarray(cnt), np.asarray(norm, dtype=np.float64)
    if counts.shape != norms.shape:
        raise ValueError(f"{counts.shape} counts but {norms.shape} norms")
    present = counts > 0
    if not present.any():
        raise ValueError("no row is in the batch")
    counts, norms = counts[present], norms[present]
    figure, (left, right) = panels(2)
    _draw(left, counts, norms, "||g||")
    _draw(right, counts, norms / counts, "||g|| / cnt")
    left.set_ylabel("embedding rows")
    legend_below(figure, left, title="occurrences of the row in the batch (cnt)")
    return figure


def _draw(axes: Any, counts: npt.NDArray[Any], values: npt.NDArray[Any], name: str) -> None:
    positive = values > 0
    edges = _edges(values[positive])
    for place, (low, high) in enumerate(CLASSES):
        chosen = (counts >= low) & (counts <= high if high else True)
        if not chosen.any():
            continue
        look = style(place)
        heights, _ = np.histogram(values[chosen & positive], edges)
        axes.stairs(
            heights, edges, label=f"{_named(low, high)}: {chosen.sum():,} rows",
            color=look["color"], linestyle=look["linestyle"], linewidth=1.4,
        )  # fmt: skip
    zeros = int((~positive).sum())
    axes.set_xlabel(name + (f"   (0 in {zeros:,} rows)" if zeros else ""))
    if positive.any():
        axes.set(xscale="log", yscale="log")


def _edges(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    low, high = (values.min(), values.max()) if len(values) else (1e-3, 1.0)
    return np.geomspace(low * 0.99, high * 1.01, BINS + 1)


def _named(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} or more"
    return f"{low}" if low == high else f"{low} to {high}"
