"""The row kernels on the CPU: parallel over rows, the same bits in every run.

Arrays are float32; gradients may be bfloat16. Norms are summed in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from cowclip_merlin.kernels.interface import Groups, NonFiniteGradient, RowSettings, UniqueRows

Array = npt.NDArray[Any]
_ONE = np.float32(1.0)
_CHUNK = 1024  # numbers that are replayed together: w, m and v of them stay in the first cache
_KIND = {"none": 0, "cowclip": 1, "column": 2}


def _jit(*, parallel: bool) -> Callable[[Any], Any]:
    """Compile, and keep the result on disk where a folder can be written."""

    def decorate(function: Any) -> Any:
        try:
            return njit(function, parallel=parallel, error_model="numpy", cache=True)
        except RuntimeError:  # no folder for the cache
            return njit(function, parallel=parallel, error_model="numpy")

    return decorate


@_jit(parallel=False)
def _radix_order(ids: Any, smallest: Any, bits: int) -> Any:
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
def _starts(ids: Any, order: Any) -> Any:
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


def group_rows(ids: Array) -> Groups:
    """See `kernels.reference.group_rows`; a radix sort."""
    ids = np.ascontiguousarray(ids)
    if len(ids) == 0:
        return Groups(ids, np.zeros(1, np.int32), np.zeros(0, np.int32))
    smallest = ids.min()
    bits = int(int(ids.max()) - int(smallest)).bit_length()
    order = _radix_order(ids, smallest, bits)
    starts = _starts(ids, order)
    return Groups(ids[order[starts[:-1]]], starts, order)


@_jit(parallel=True)
def _sum(values: Any, starts: Any, order: Any, g: Any, bad: Any) -> None:
    """Sum the occurrences of each id in their order; mark sums that are not finite."""
    d = values.shape[1]
    for i in prange(len(starts) - 1):
        for j in range(d):
            g[i, j] = values[order[starts[i]], j]
        for s in range(starts[i] + 1, starts[i + 1]):
            k = order[s]
            for j in range(d):
                g[i, j] += values[k, j]
        zero = np.float32(0.0)
        for j in range(d):
            zero += g[i, j] * np.float32(0.0)
        bad[i] = zero != zero


def _sums(values: Array, groups: Groups) -> tuple[Array, Array]:
    values = as_float32(values)
    u = len(groups.ids)
    g, bad = np.empty((u, values.shape[1]), np.float32), np.empty(u, np.bool_)
    _sum(values, groups.starts, groups.order, g, bad)
    return g, bad


def as_float32(values: Array) -> Array:
    """Gradients as contiguous float32; bfloat16 is the upper half of it."""
    if values.dtype.name == "bfloat16":
        wide = np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32)
    return np.ascontiguousarray(values, np.float32)


def unique_rows(ids: Array, values: Array) -> UniqueRows:
    """See `kernels.reference.unique_rows`."""
    groups = group_rows(ids)
    return UniqueRows(groups.ids, np.diff(groups.starts), _sums(values, groups)[0])


@_jit(parallel=False)
def _norm(x: Any) -> float:
    square = 0.0
    for j in range(len(x)):
        square += np.float64(x[j]) * np.float64(x[j])
    return np.sqrt(square)


@_jit(parallel=False)
def _row_factor(
    g: Any, w: Any, cnt: int, kind: int, r: float, floor: float, bound: float
) -> np.float32:
    """Clip factor of one row."""
    if kind == 0:
        return np.float32(1.0)
    norm = _norm(g)
    threshold = bound
    if kind == 1:
        threshold = max(cnt, 1) * max(r * _norm(w), floor)
    return np.float32(threshold / norm) if norm > threshold else np.float32(1.0)


@_jit(parallel=True)
def _clip(
    g: Any, w: Any, cnt: Any, l2: Any, kind: int, r: float, floor: float, bound: float, factor: Any
) -> None:
    for i in prange(len(g)):
        for j in range(g.shape[1]):
            g[i, j] += l2 * w[i, j]
        factor[i] = _row_factor(g[i], w[i], cnt[i], kind, r, floor, bound)
        for j in range(g.shape[1]):
            g[i, j] *= factor[i]


def clip_rows(
    g: Array,
    w: Array,
    cnt: Array,
    settings: RowSettings,
    *,
    field: Array | None = None,
    num_fields: int = 1,
) -> tuple[Array, Array]:
    """See `kernels.reference.clip_rows`."""
    g, factor = np.array(g, np.float32, order="C"), np.empty(len(g), np.float32)
    w, cnt = np.ascontiguousarray(w, np.float32), np.ascontiguousarray(cnt, np.int64)
    kind = _KIND.get(settings.clip, 0)
    _clip(g, w, cnt, *_constants(settings, g.shape[1], kind), factor)
    if settings.clip not in _KIND:
        factor = _field_factors(g, w, cnt, settings, field, num_fields)
        g *= factor[:, None]
    return g, factor


def _constants(settings: RowSettings, d: int, kind: int) -> tuple[Any, ...]:
    return (
        np.float32(2 * settings.l2), kind, settings.r, settings.floor(d), settings.bound,
    )  # fmt: skip


def _field_factors(
    g: Array, w: Array, cnt: Array, settings: RowSettings, field: Array | None, num_fields: int
) -> Array:
    """Factors of the clips that need the norms of whole fields; g holds L2 already."""
    if field is None or settings.clip == "global":
        field, num_fields = np.zeros(len(g), np.int64), 1
    norms = np.sqrt(_field_squares(g, field, num_fields))
    threshold = np.full(num_fields, settings.bound)
    if settings.clip == "adaptive_field":
        cnt_f = np.bincount(field, cnt, num_fields)
        threshold = (
            np.maximum(cnt_f, 1) * settings.r * np.sqrt(_field_squares(w, field, num_fields))
        )
    safe = np.where(norms > 0, norms, 1.0)
    return np.where(norms > 0, np.minimum(1.0, threshold / safe), 1.0)[field].astype(np.float32)


def _field_squares(x: Array, field: Array, num_fields: int) -> Array:
    return np.bincount(field, np.einsum("ij,ij->i", x, x, dtype=np.float64), num_fields)


@_jit(parallel=False)
def _adam(w: Any, m: Any, v: Any, g: Any, alpha: Any, keep: Any) -> tuple:
    """One number's step, operation by operation as TensorFlow's dense Adam does it."""
    m += (g - m) * keep[0]
    v += (g * g - v) * keep[1]
    w -= (m * alpha) / (np.sqrt(v) + keep[2])
    return w, m, v


def _adam_constants(settings: RowSettings) -> Array:
    one = _ONE
    beta_1, beta_2 = np.float32(settings.beta_1), np.float32(settings.beta_2)
    return np.array([one - beta_1, one - beta_2, settings.epsilon], np.float32)


@_jit(parallel=True)
def _step(
    w: Any, m: Any, v: Any, rows: Any, g: Any, starts: Any, alpha: Any, keep: Any, l2: Any,
    kind: int, r: float, floor: float, bound: float, factor: Any,
) -> None:  # fmt: skip
    for i in prange(len(rows)):
        k = rows[i]
        for j in range(w.shape[1]):
            g[i, j] += l2 * w[k, j]
        cnt = starts[i + 1] - starts[i]
        factor[i] = _row_factor(g[i], w[k], cnt, kind, r, floor, bound)
        for j in range(w.shape[1]):
            w[k, j], m[k, j], v[k, j] = _adam(
                w[k, j], m[k, j], v[k, j], g[i, j] * factor[i], alpha, keep
            )


def sum_rows(values: Array, groups: Groups) -> Array:
    """Gradients of the distinct ids, float32 [u, d]; the first half of `update_rows`.

    Raises:
        NonFiniteGradient: a sum holds NaN or Inf.
    """
    g, bad = _sums(values, groups)
    if bad.any():
        raise NonFiniteGradient(int(bad.argmax()))
    return g


def step_rows(
    w: Array,
    m: Array,
    v: Array,
    rows: Array,
    g: Array,
    starts: Array,
    alpha: float,
    settings: RowSettings,
) -> Array:
    """L2, clip and Adam of these rows, in place; the second half of `update_rows`.

    Args:
        w: weights [N, d].
        m: Adam's first moments [N, d].
        v: Adam's second moments [N, d].
        rows: row of each distinct id, int [u].
        g: their summed gradients [u, d]; overwritten.
        starts: of their `Groups`, for the counts.
        alpha: learning rate with both bias corrections.
        settings: L2, clip and Adam.

    Returns:
        The clip factor of each row, float32 [u].
    """
    factor = np.empty(len(rows), np.float32)
    constants = _constants(settings, w.shape[1], _KIND[settings.clip])
    keep = _adam_constants(settings)
    _step(w, m, v, rows, g, starts, np.float32(alpha), keep, *constants, factor)
    return factor


def update_rows(
    w: Array,
    m: Array,
    v: Array,
    groups: Groups,
    values: Array,
    alpha: float,
    settings: RowSettings,
    *,
    rows: Array | None = None,
) -> Array:
    """See `kernels.reference.update_rows`."""
    g = sum_rows(values, groups)
    rows = np.arange(len(groups.ids), dtype=np.int32) if rows is None else rows
    return step_rows(w, m, v, rows, g, groups.starts, alpha, settings)


@_jit(parallel=False)
def _replay_some(
    w: Any, m: Any, v: Any, last: Any, rows: Any, alphas: Any, to: int, keep: Any, l2: Any
) -> None:
    """Rows in the order of their last step.

    Time runs in the outer loop and the numbers of all rows that have begun in the inner one,
    which the compiler turns into vector instructions whatever the length of a row.
    """
    n, d = len(rows), w.shape[1]
    a, b, e = np.empty(n * d, w.dtype), np.empty(n * d, w.dtype), np.empty(n * d, w.dtype)
    for i in range(n):
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
                a[x], b[x], e[x] = _adam(a[x], b[x], e[x], l2 * a[x], alpha, keep)
        step = end
    for i in range(n):
        for j in range(d):
            w[rows[i], j], m[rows[i], j] = a[i * d + j], b[i * d + j]
            v[rows[i], j] = e[i * d + j]


@_jit(parallel=True)
def _replay(
    w: Any, m: Any, v: Any, last: Any, order: Any, alphas: Any, to: int, keep: Any, l2: Any
) -> None:
    size = max(1, _CHUNK // w.shape[1])
    chunks = (len(order) + size - 1) // size
    for c in prange(chunks):
        # Neighbours have missed about as many steps: deal them out over the threads.
        first = np.int64(c * 7919 % chunks if chunks % 7919 else c) * size
        rows = order[first : first + size]
        _replay_some(w, m, v, last, rows, alphas, to, keep, l2)


def replay_rows(
    w: Array,
    m: Array,
    v: Array,
    last: Array,
    alphas: Array,
    to: int,
    settings: RowSettings,
    *,
    rows: Array | None = None,
) -> None:
    """See `kernels.reference.replay_rows`."""
    seen = last if rows is None else last[rows]
    behind = np.flatnonzero(seen < to).astype(np.int32)
    if len(behind) == 0:
        return
    seen = seen[behind].astype(np.int32)
    order = behind[_radix_order(seen, np.int32(0), int(to).bit_length())]
    order = order if rows is None else rows[order]
    keep, l2 = _adam_constants(settings), np.float32(2 * settings.l2)
    alphas = np.ascontiguousarray(alphas, np.float32)
    _replay(w, m, v, last, order, alphas, to, keep, l2)
    last[order] = to
