"""Compiled loops of `kernels.numba`: parallel over rows, the same bits in every run.

Divisions do not check for zero (`error_model="numpy"`), because the check prevents vector
instructions.

Adagrad has an accumulator per number, or per row. Its rows are taken in chunks and transposed, too,
with the same clip.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from cowclip_merlin.kernels.compiled import AHEAD, compiled, prefetch, prefetch_row
from cowclip_merlin.types import Array

CHUNK = 1024
"""Numbers per chunk, so that their w, m and v stay in the first-level cache."""

_LEAST = np.float32(1.1e-19)  # the square of a smaller number is not a normal float32


@compiled
def row_factor(
    of_g: float, of_w: float, cnt: int, kind: int, r: float, floor: float, bound: float
) -> np.float32:
    """Return the clip factor of one row from the sums of squares of its gradient and weights.

    Callers sum in float64, in the order of the row. They do not pass slices: an array for each row
    costs more than its sum.
    """
    if kind == 0:
        return np.float32(1.0)
    norm, threshold = np.sqrt(of_g), bound
    if kind == 1:
        threshold = max(cnt, 1) * max(r * np.sqrt(of_w), floor)
    return np.float32(threshold / norm) if norm > threshold else np.float32(1.0)


@compiled(parallel=True)
def clip_each(
    g: Array,
    w: Array,
    cnt: Array,
    l2: np.float32,
    kind: int,
    r: float,
    floor: float,
    bound: float,
    factor: Array,
) -> None:
    """Add L2 to each row and clip it, in place."""
    for i in prange(len(g)):
        of_g, of_w = 0.0, 0.0
        for j in range(g.shape[1]):
            g[i, j] += l2 * w[i, j]
            of_g += np.float64(g[i, j]) * np.float64(g[i, j])
            of_w += np.float64(w[i, j]) * np.float64(w[i, j])
        factor[i] = row_factor(of_g, of_w, cnt[i], kind, r, floor, bound)
        for j in range(g.shape[1]):
            g[i, j] *= factor[i]


@compiled
def adam_number(
    w: np.float32,
    m: np.float32,
    v: np.float32,
    g: np.float32,
    alpha: np.float32,
    keep: Array,
) -> tuple:
    """Apply Adam to one number, with the operations of TensorFlow's dense Adam.

    A square below the least normal number is 0, as in TensorFlow's threads. A CPU takes a hundred
    cycles for one, and L2 makes them when a weight is almost 0.
    """
    m += (g - m) * keep[0]
    g = g if abs(g) >= _LEAST else np.float32(0.0)
    v += (g * g * keep[3] - v) * keep[1]
    w -= (m * alpha) / (np.sqrt(v) + keep[2])
    return w, m, v


@compiled
def adam_squares(
    w: np.float32,
    m: np.float32,
    v: np.float32,
    g: np.float32,
    squares: np.float32,
    alpha: np.float32,
    keep: Array,
) -> tuple:
    """Apply Adam to one number, with another number than g * g for its second moment."""
    m += (g - m) * keep[0]
    v += (max(squares, np.float32(0.0)) * keep[3] - v) * keep[1]
    w -= (m * alpha) / (np.sqrt(v) + keep[2])
    return w, m, v


@compiled
def prefetch_state(w: Array, m: Array, v: Array, rows: Array, i: int) -> None:
    """Prefetch w, m and v of row number i of these rows, if it exists."""
    if i < len(rows):
        prefetch_row(w, rows[i])
        prefetch_row(m, rows[i])
        prefetch_row(v, rows[i])


@compiled
def chunk_factors(
    g: Array,
    w: Array,
    starts: Array,
    kind: int,
    r: float,
    floor: float,
    bound: float,
    factor: Array,
) -> None:
    """Return the clip factors of g and w [d, n], one column per row; bits as in `clip_each`."""
    d, n = g.shape
    of_g, of_w = np.zeros(n), np.zeros(n)
    for j in range(d):
        for i in range(n):
            of_g[i] += np.float64(g[j, i]) * np.float64(g[j, i])
            of_w[i] += np.float64(w[j, i]) * np.float64(w[j, i])
    for i in range(n):
        cnt = starts[i + 1] - starts[i]
        factor[i] = row_factor(of_g[i], of_w[i], cnt, kind, r, floor, bound)


@compiled
def step_chunk(
    w: Array, m: Array, v: Array, rows: Array, g: Array, squares: Array, parts: np.float32,
    starts: Array, alpha: np.float32,
    keep: Array, l2: np.float32, kind: int, r: float, floor: float, bound: float, factor: Array,
) -> None:  # fmt: skip
    """Process some rows of `step_each`.

    The rows are transposed to [d, n], so that the inner loops run over rows. The compiler
    vectorizes these loops for any row length.
    """
    n, d = len(rows), w.shape[1]
    a, b = np.empty((d, n), w.dtype), np.empty((d, n), w.dtype)
    e, h = np.empty((d, n), w.dtype), np.empty((d, n), w.dtype)
    for i in range(min(n, AHEAD)):
        prefetch_state(w, m, v, rows, i)
    for i in range(n):
        prefetch_state(w, m, v, rows, i + AHEAD)
        k = rows[i]
        for j in range(d):
            a[j, i], b[j, i], e[j, i] = w[k, j], m[k, j], v[k, j]
            h[j, i] = g[i, j] + l2 * w[k, j]
    factor[:] = np.float32(1.0)
    if kind != 0:
        chunk_factors(h, a, starts, kind, r, floor, bound, factor)
    if parts > 1:
        for j in range(d):
            for i in range(n):
                # The sum over parts of (their gradient + L2 / parts)^2, after the clip.
                x = l2 * a[j, i]
                total = squares[i, j] + x * (2 * h[j, i] - x) / parts
                a[j, i], b[j, i], e[j, i] = adam_squares(
                    a[j, i], b[j, i], e[j, i], h[j, i] * factor[i],
                    factor[i] * factor[i] * total, alpha, keep,
                )  # fmt: skip
    else:
        for j in range(d):
            for i in range(n):
                a[j, i], b[j, i], e[j, i] = adam_number(
                    a[j, i], b[j, i], e[j, i], h[j, i] * factor[i], alpha, keep
                )
    for i in range(n):
        k = rows[i]
        for j in range(d):
            w[k, j], m[k, j], v[k, j] = a[j, i], b[j, i], e[j, i]


@compiled(parallel=True)
def step_each(
    w: Array, m: Array, v: Array, rows: Array, g: Array, squares: Array, parts: np.float32,
    starts: Array, alpha: np.float32,
    keep: Array, l2: np.float32, kind: int, r: float, floor: float, bound: float, factor: Array,
) -> None:  # fmt: skip
    """Apply L2, clip and Adam to each row, in place; `squares` counts if there are `parts`."""
    size = max(1, CHUNK // w.shape[1])
    for c in prange((len(rows) + size - 1) // size):
        first, end = c * size, min(len(rows), c * size + size)
        step_chunk(
            w, m, v, rows[first:end], g[first:end], squares[first:end], parts,
            starts[first : end + 1], alpha, keep, l2, kind, r, floor, bound, factor[first:end],
        )  # fmt: skip


@compiled
def take_behind(last: Array, rows: Array, to: int) -> tuple[Array, Array]:
    """Return the rows that have seen fewer than `to` steps, once each, and their steps, int32.

    Then set their number of steps to `to`.
    """
    behind, seen = np.empty(len(rows), rows.dtype), np.empty(len(rows), np.int32)
    count, end = 0, len(rows) - 1
    for i in range(len(rows)):
        prefetch(last, rows[min(i + 2 * AHEAD, end)])
        k = rows[i]
        behind[count], seen[count] = k, last[k]
        if last[k] < to:
            last[k] = to
            count += 1
    return behind[:count], seen[:count]


@compiled
def mark_rows(last: Array, rows: Array, to: int) -> None:
    """Set the number of steps that these rows have seen to `to`."""
    for k in rows:
        last[k] = to


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
