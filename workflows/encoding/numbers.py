"""The continuous columns: missing numbers, logarithm, ranges and scale, as NVTabular does it."""

from __future__ import annotations

import numpy as np

from cowclip_merlin.types import Array, ArrowColumn


def filled(column: ArrowColumn, *, log: bool) -> Array:
    """Return numbers before they are scaled; missing ones are 0.

    Args:
        column: Arrow array or chunked array of numbers, [n].
        log: replace x by log(1 + x), and by 0 where x is negative.

    Returns:
        float64 [n], or float32 with `log`.

    >>> import pyarrow as pa
    >>> filled(pa.array([1.5, None]), log=False).tolist()
    [1.5, 0.0]
    """
    x = np.asarray(column, np.float64)
    x = np.where(np.isnan(x), 0.0, x)
    if not log:
        return x
    with np.errstate(over="ignore"):  # beyond float32: infinite
        return np.log(np.maximum(x, 0).astype(np.float32) + 1)


def scaled(x: Array, low: float, high: float) -> Array:
    """Scale the range [low, high] to [0, 1], float32 [n]; 0 stays 0 if the range is empty.

    >>> scaled(np.array([1.0, 3.0]), 1.0, 5.0).tolist(), scaled(np.zeros(1), 0.0, 0.0).tolist()
    ([0.0, 0.5], [0.0])
    """
    spread = high - low
    with np.errstate(invalid="ignore", over="ignore"):
        found = (x - low) / spread if spread > 0 else x / (x * 2)
        found = found.astype(np.float32)
    found[np.isnan(found)] = 0
    return found
