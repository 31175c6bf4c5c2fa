"""The compiled loops behind `kernels.numba`: parallel over rows, the same bits in every run.

Divisions do not check for zero (`error_model="numpy"`): the check would keep the compiler from
vector instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, prange

from cowclip_merlin.kernels.numba_prefetch import AHEAD, prefetch_row

_CHUNK = 1024  # numbers that take steps together: w, m and v of them stay in the first cache


def _jit(*, parallel: bool) -> Callable[[Any], Any]:
    """Compile, and keep the result on disk where a folder can be written."""

    def decorate(function: Any) -> Any:
        try:
            return njit(function, parallel=parallel, error_model="numpy", cache=True)
        except RuntimeError:  # no folder for the cache
            return njit(function, parallel=parallel, error_model="numpy")

    return decorate


@_jit(parallel=False)
def radix_order(ids: Any, smallest: Any, bits: int) -> Any:
    """Stable order of integers below 2^bits above the smallest, 11 bits a pass, int32 [n]."""
    n = len(ids)
    order, other = np.arange(n, dtype=np.int32), np.empty(n, np.int32)
    passes = (bits + 10) // 11
    width = (bits + passes - 1) // passes if passes else 0
    for p in range(passes):
        shift, mask = p * width, (1 << width) - 1
        ends = np.zeros((1 << width) + 1, np.int64)
        for i in range(n):
            ends[(((ids[i] - smallest) >> shift) & mask) + 1] += 1
        for digit in range(1 << width):
            ends[digit + 1] += ends[digit]
        for i in range(n):
            k = order[i]
            digit = ((ids[k] - smallest) >> shift) & mask
            other[ends[digit]] = k
            ends[digit] += 1
        order, other = other, order
    return order


@_jit(parallel=False)
def find_starts(ids: Any, order: Any) -> Any:
    """Where a new id begins, and n at the end, int32 [u + 1]."""
    n = len(ids)
    starts = np.empty(n + 1, np.int32)
    u = 0
    for i in range(n):
        if i == 0 or ids[order[i]] != ids[order[i - 1]]:
            starts[u] = i
            u += 1
    starts[u] = n
    return starts[: u + 1].copy()


@_jit(parallel=True)
def sum_groups(values: Any, starts: Any, order: Any, g: Any, bad: Any) -> None:
    """Sum the occurrences of each id in their order; mark sums that are not finite."""
    d, last = values.shape[1], len(order) - 1
    for i in prange(len(starts) - 1):
        first = starts[i]
        prefetch_row(values, order[min(first + 2 * AHEAD, last)])
        for j in range(d):
            g[i, j] = values[order[first], j]
        for s in range(first + 1, starts[i + 1]):
            prefetch_row(values, order[min(s + 2 * AHEAD, last)])
            k = order[s]
            for j in range(d):
                g[i, j] += values[k, j]
        zero = np.float32(0.0)
        for j in range(d):
            zero += g[i, j] * np.float32(0.0)
        bad[i] = zero != zero


@_jit(parallel=False)
def row_norm(x: Any) -> float:
    """Euclidean norm, summed in float64."""
    square = 0.0
    for j in range(len(x)):
        square += np.float64(x[j]) * np.float64(x[j])
    return np.sqrt(square)


@_jit(parallel=False)
def row_factor(
    g: Any, w: Any, cnt: int, kind: int, r: float, floor: float, bound: float
) -> np.float32:
    """Clip factor of one row."""
    if kind == 0:
        return np.float32(1.0)
    norm = row_norm(g)
    threshold = bound
    if kind == 1:
        threshold = max(cnt, 1) * max(r * row_norm(w), floor)
    return np.float32(threshold / norm) if norm > threshold else np.float32(1.0)


@_jit(parallel=True)
def clip_each(
    g: Any, w: Any, cnt: Any, l2: Any, kind: int, r: float, floor: float, bound: float, factor: Any
) -> None:
    """L2 and clip of each row, in place."""
    for i in prange(len(g)):
        for j in range(g.shape[1]):
            g[i, j] += l2 * w[i, j]
        factor[i] = row_factor(g[i], w[i], cnt[i], kind, r, floor, bound)
        for j in range(g.shape[1]):
            g[i, j] *= factor[i]


@_jit(parallel=False)
def adam_number(w: Any, m: Any, v: Any, g: Any, alpha: Any, keep: Any) -> tuple:
    """One number's step, operation by operation as TensorFlow's dense Adam does it."""
    m += (g - m) * keep[0]
    v += (g * g - v) * keep[1]
    w -= (m * alpha) / (np.sqrt(v) + keep[2])
    return w, m, v


@_jit(parallel=False)
def prefetch_state(w: Any, m: Any, v: Any, rows: Any, i: int) -> None:
    """Ask for all that belongs to row number i of these, if there is one."""
    if i < len(rows):
        prefetch_row(w, rows[i])
        prefetch_row(m, rows[i])
        prefetch_row(v, rows[i])


@_jit(parallel=False)
def chunk_factors(
    g: Any, w: Any, starts: Any, kind: int, r: float, floor: float, bound: float, factor: Any
) -> None:
    """Clip factors as by `row_factor`, to the bit, of g and w [d, n], one column a row."""
    d, n = g.shape
    of_g, of_w = np.zeros(n), np.zeros(n)
    for j in range(d):
        for i in range(n):
            of_g[i] += np.float64(g[j, i]) * np.float64(g[j, i])
            of_w[i] += np.float64(w[j, i]) * np.float64(w[j, i])
    for i in range(n):
        norm, threshold = np.sqrt(of_g[i]), bound
        if kind == 1:
            cnt = starts[i + 1] - starts[i]
            threshold = max(cnt, 1) * max(r * np.sqrt(of_w[i]), floor)
        factor[i] = np.float32(threshold / norm) if norm > threshold else np.float32(1.0)


@_jit(parallel=False)
def step_chunk(
    w: Any, m: Any, v: Any, rows: Any, g: Any, starts: Any, alpha: Any, keep: Any, l2: Any,
    kind: int, r: float, floor: float, bound: float, factor: Any,
) -> None:  # fmt: skip
    """Some rows of `step_each`.

    They are laid side by side, [d, n], so that the inner loops run over rows: the compiler turns
    these into vector instructions whatever the length of a row.
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
    for j in range(d):
        for i in range(n):
            a[j, i], b[j, i], e[j, i] = adam_number(
                a[j, i], b[j, i], e[j, i], h[j, i] * factor[i], alpha, keep
            )
    for i in range(n):
        k = rows[i]
        for j in range(d):
            w[k, j], m[k, j], v[k, j] = a[j, i], b[j, i], e[j, i]


@_jit(parallel=True)
def step_each(
    w: Any, m: Any, v: Any, rows: Any, g: Any, starts: Any, alpha: Any, keep: Any, l2: Any,
    kind: int, r: float, floor: float, bound: float, factor: Any,
) -> None:  # fmt: skip
    """L2, clip and Adam of each row, in place."""
    size = max(1, _CHUNK // w.shape[1])
    for c in prange((len(rows) + size - 1) // size):
        first, end = c * size, min(len(rows), c * size + size)
        step_chunk(
            w, m, v, rows[first:end], g[first:end], starts[first : end + 1], alpha, keep, l2,
            kind, r, floor, bound, factor[first:end],
        )  # fmt: skip


@_jit(parallel=False)
def replay_chunk(
    w: Any, m: Any, v: Any, last: Any, rows: Any, alphas: Any, to: int, keep: Any, l2: Any
) -> None:
    """Rows in the order of their last step.

    Time runs in the outer loop and the numbers of all rows that have begun in the inner one,
    which the compiler turns into vector instructions whatever the length of a row.
    """
    n, d = len(rows), w.shape[1]
    a, b, e = np.empty(n * d, w.dtype), np.empty(n * d, w.dtype), np.empty(n * d, w.dtype)
    for i in range(min(n, AHEAD)):
        prefetch_state(w, m, v, rows, i)
    for i in range(n):
        prefetch_state(w, m, v, rows, i + AHEAD)
        for j in range(d):
            a[i * d + j], b[i * d + j] = w[rows[i], j], m[rows[i], j]
            e[i * d + j] = v[rows[i], j]
    begun, step = 0, np.int64(last[rows[0]])
    while step < to:
        while begun < n and last[rows[begun]] <= step:
            begun += 1
        end = to if begun == n else min(to, np.int64(last[rows[begun]]))
        for s in range(step, end):
            alpha = alphas[s]
            for x in range(begun * d):
                a[x], b[x], e[x] = adam_number(a[x], b[x], e[x], l2 * a[x], alpha, keep)
        step = end
    for i in range(n):
        for j in range(d):
            w[rows[i], j], m[rows[i], j] = a[i * d + j], b[i * d + j]
            v[rows[i], j] = e[i * d + j]


@_jit(parallel=True)
def replay_each(
    w: Any, m: Any, v: Any, last: Any, order: Any, alphas: Any, to: int, keep: Any, l2: Any
) -> None:
    """Chunks of rows, which come in the order of their last step."""
    size = max(1, _CHUNK // w.shape[1])
    chunks = (len(order) + size - 1) // size
    for c in prange(chunks):
        # Neighbours have missed about as many steps: deal them out over the threads.
        first = np.int64(c * 7919 % chunks if chunks % 7919 else c) * size
        rows = order[first : first + size]
        replay_chunk(w, m, v, last, rows, alphas, to, keep, l2)


@_jit(parallel=False)
def find_behind(last: Any, rows: Any, to: int) -> Any:
    """The rows that have seen fewer steps, and how many they have seen, int32."""
    behind, seen = np.empty(len(rows), rows.dtype), np.empty(len(rows), np.int32)
    count = 0
    for k in rows:
        behind[count], seen[count] = k, last[k]
        count += last[k] < to
    return behind[:count], seen[:count]


@_jit(parallel=False)
def mark_rows(last: Any, rows: Any, to: int) -> None:
    """Let these rows have seen `to` steps."""
    for k in rows:
        last[k] = to
