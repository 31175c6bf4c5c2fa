"""Compiled loops of a step of Adagrad: an accumulator per number, or per row.

Rows are taken in chunks and transposed, as in `loops.rows`, with the same clip.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from cowclip_merlin.kernels.compiled import compiled
from cowclip_merlin.kernels.loops.prefetch import AHEAD, prefetch_row
from cowclip_merlin.kernels.loops.rows import CHUNK, chunk_factors
from cowclip_merlin.types import Array


@compiled
def _prefetch(w: Array, sums: Array, rows: Array, i: int) -> None:
    if i < len(rows):
        prefetch_row(w, rows[i])
        prefetch_row(sums, rows[i])


@compiled
def _over_root(x: np.float32, total: np.float32, epsilon: np.float32) -> np.float32:
    """Return x / (sqrt(total) + epsilon), and 0 in place of a division by 0."""
    root = np.sqrt(total) + epsilon
    return x / root if root > 0 else np.float32(0.0)


@compiled
def _step_rowwise(
    a: Array, h: Array, sums: Array, rows: Array, rate: np.float32, epsilon: np.float32
) -> None:
    """Move the weights a [d, n] by their gradients h, with one accumulator per row."""
    d, n = h.shape
    squares, moves = np.zeros(n), np.empty(n, h.dtype)
    for j in range(d):
        for i in range(n):
            squares[i] += np.float64(h[j, i]) * np.float64(h[j, i])
    for i in range(n):
        sums[rows[i], 0] += np.float32(squares[i] / d)
        moves[i] = _over_root(rate, sums[rows[i], 0], epsilon)
    for j in range(d):
        for i in range(n):
            a[j, i] -= moves[i] * h[j, i]


@compiled
def _step_numbers(
    a: Array, h: Array, sums: Array, rows: Array, rate: np.float32, epsilon: np.float32
) -> None:
    """Do the same with one accumulator per number, and the operations of TensorFlow's Adagrad."""
    d, n = h.shape
    e = np.empty((d, n), h.dtype)
    for i in range(n):
        for j in range(d):
            e[j, i] = sums[rows[i], j]
    for j in range(d):
        for i in range(n):
            e[j, i] += h[j, i] * h[j, i]
            a[j, i] -= _over_root(rate * h[j, i], e[j, i], epsilon)
    for i in range(n):
        for j in range(d):
            sums[rows[i], j] = e[j, i]


@compiled
def _adagrad_chunk(
    w: Array, sums: Array, rows: Array, g: Array, starts: Array, rate: np.float32,
    epsilon: np.float32, l2: np.float32, kind: int, r: float, floor: float, bound: float,
    factor: Array,
) -> None:  # fmt: skip
    """Process some rows of `adagrad_each`."""
    n, d = len(rows), w.shape[1]
    a, h = np.empty((d, n), w.dtype), np.empty((d, n), w.dtype)
    for i in range(min(n, AHEAD)):
        _prefetch(w, sums, rows, i)
    for i in range(n):
        _prefetch(w, sums, rows, i + AHEAD)
        for j in range(d):
            a[j, i] = w[rows[i], j]
            h[j, i] = g[i, j] + l2 * w[rows[i], j]
    factor[:] = np.float32(1.0)
    if kind != 0:
        chunk_factors(h, a, starts, kind, r, floor, bound, factor)
        for j in range(d):
            for i in range(n):
                h[j, i] *= factor[i]
    if sums.shape[1] == 1:
        _step_rowwise(a, h, sums, rows, rate, epsilon)
    else:
        _step_numbers(a, h, sums, rows, rate, epsilon)
    for i in range(n):
        for j in range(d):
            w[rows[i], j] = a[j, i]


@compiled(parallel=True)
def adagrad_each(
    w: Array, sums: Array, rows: Array, g: Array, starts: Array, rate: np.float32,
    epsilon: np.float32, l2: np.float32, kind: int, r: float, floor: float, bound: float,
    factor: Array,
) -> None:  # fmt: skip
    """Apply L2, clip and Adagrad to each row, in place."""
    size = max(1, CHUNK // w.shape[1])
    for c in prange((len(rows) + size - 1) // size):
        first, end = c * size, min(len(rows), c * size + size)
        _adagrad_chunk(
            w, sums, rows[first:end], g[first:end], starts[first : end + 1], rate, epsilon,
            l2, kind, r, floor, bound, factor[first:end],
        )  # fmt: skip
