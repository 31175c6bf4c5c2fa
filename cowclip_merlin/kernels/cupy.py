"""Row kernels on the GPU with CuPy; the same GPU gives the same bits in every run.

Arrays are CuPy arrays. State (`w`, `m`, `v`) is float32 and contiguous. Gradients are float32 or
bfloat16; because CuPy has no bfloat16, a uint16 array holds the bits of bfloat16.
Norms are summed in float64. The CUDA source is in `kernels/cuda/arrays.cuh`.
"""

from __future__ import annotations

from functools import cache

import cupy
import numpy as np

from cowclip_merlin import choices
from cowclip_merlin.choices import RowSettings, lacks_clip
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.cuda.source import SEGMENT, options, program, tile_of
from cowclip_merlin.kernels.interface import Groups, NonFiniteGradient, UniqueRows
from cowclip_merlin.types import Array

_BLOCK = 256


@cache
def _kernel(name: str, d: int, bfloat16: bool) -> cupy.RawKernel:
    """Compile a kernel for rows of length d; CuPy caches compiled kernels on disk."""
    return _module(options(d, tile_of(d), bfloat16=bfloat16)).get_function(name)


@cache
def _module(flags: tuple[str, ...]) -> cupy.RawModule:
    return cupy.RawModule(code=program("arrays"), options=flags)


def _launch(
    name: str, d: int, threads: int, *args: Array | np.generic, bfloat16: bool = False
) -> None:
    """Run a kernel with at least `threads` threads; scalars must be NumPy's, of the right size."""
    if threads:
        _kernel(name, d, bfloat16)((-(-threads // _BLOCK),), (_BLOCK,), args)


def _launch_rows(
    name: str, d: int, rows: int, *args: Array | np.generic, bfloat16: bool = False
) -> None:
    """Run a kernel that processes each row with a tile of lanes."""
    _launch(name, d, rows * tile_of(d), *args, bfloat16=bfloat16)


def group_rows(ids: Array) -> Groups:
    """See `kernels.reference.group_rows`.

    Args:
        ids: integer [n].

    Returns:
        ids [u] in their own dtype, starts int64 [u + 1], order int64 [n].
    """
    ids = cupy.ascontiguousarray(ids)
    n = len(ids)
    if n == 0:
        return Groups(ids, cupy.zeros(1, np.int64), cupy.zeros(0, np.int64))
    order = cupy.argsort(ids)  # CuPy's only sort is stable
    ranked = ids[order]
    first = cupy.ones(n, np.bool_)
    first[1:] = ranked[1:] != ranked[:-1]
    heads = cupy.flatnonzero(first)
    starts = cupy.concatenate([heads, cupy.full(1, n, np.int64)])
    return Groups(ranked[heads], starts, order)


def _gradients(values: Array) -> Array:
    """Return contiguous gradients: float32, or uint16 bits of bfloat16."""
    if values.dtype == np.uint16:
        return cupy.ascontiguousarray(values)
    return cupy.ascontiguousarray(values, dtype=np.float32)


def _sums(values: Array, groups: Groups) -> tuple[Array, Array]:
    """Sum gradients, float32 [u, d]; also return the first non-finite row, int64 [1] (u: none).

    An id with more than `SEGMENT` occurrences is summed in pieces, then over its pieces. So no
    tile adds all gradients of a frequent id one by one.
    """
    values, u, d = _gradients(values), len(groups.ids), values.shape[1]
    starts = cupy.ascontiguousarray(groups.starts, dtype=np.int64)
    order = cupy.ascontiguousarray(groups.order, dtype=np.int64)
    g, bad = cupy.empty((u, d), np.float32), cupy.full(1, u, np.int64)
    size, bfloat16 = (np.int32(d), np.int64(SEGMENT)), values.dtype == np.uint16
    _launch_rows(
        "sum_rows", d, u, values, order, starts, np.int64(u), *size, g, bad, bfloat16=bfloat16
    )
    cnt = cupy.diff(starts)
    hot = cupy.flatnonzero(cnt > SEGMENT)
    if len(hot) == 0:
        return g, bad
    zero, hots = cupy.zeros(1, np.int64), np.int64(len(hot))
    piece_starts = cupy.concatenate([zero, cupy.cumsum((cnt[hot] + SEGMENT - 1) // SEGMENT)])
    pieces = len(hot) + len(values) // SEGMENT  # an upper bound: the sum itself is on the GPU
    partial = cupy.empty((pieces, d), np.float32)
    _launch_rows(
        "sum_pieces", d, pieces, values, order, starts, hot, piece_starts, hots, *size, partial,
        bfloat16=bfloat16,
    )  # fmt: skip
    _launch_rows("join_pieces", d, len(hot), partial, hot, piece_starts, hots, size[0], g, bad)
    return g, bad


def unique_rows(ids: Array, values: Array) -> UniqueRows:
    """See `kernels.reference.unique_rows`.

    Args:
        ids: integer [n].
        values: gradient of each occurrence [n, d], float32, or uint16 bits of bfloat16.

    Returns:
        ids [u] in their own dtype, cnt int64 [u], g float32 [u, d].
    """
    groups = group_rows(ids)
    return UniqueRows(groups.ids, cupy.diff(groups.starts), _sums(values, groups)[0])


def _clip_constants(settings: RowSettings, d: int, kind: int) -> tuple[np.number, ...]:
    return (
        np.float32(2 * settings.l2), np.int32(kind), np.float64(settings.r),
        np.float64(settings.floor(d)), np.float64(settings.bound),
    )  # fmt: skip


def clip_rows(
    g: Array,
    w: Array,
    cnt: Array,
    settings: RowSettings,
    *,
    field: Array | None = None,
    num_fields: int = 1,
) -> tuple[Array, Array]:
    """See `kernels.reference.clip_rows`; returns float32 [u, d] and float32 [u]."""
    u, d = g.shape
    g = cupy.array(g, dtype=np.float32, order="C")
    w = cupy.ascontiguousarray(w, dtype=np.float32)
    cnt = cupy.ascontiguousarray(cnt, dtype=np.int64)
    factor = cupy.empty(u, np.float32)
    kind = settings.kernel_id if settings.in_row_kernels else choices.CLIPS["none"].kernel_id
    constants = _clip_constants(settings, d, kind)
    _launch_rows("clip_rows", d, u, g, w, cnt, np.int64(u), np.int32(d), *constants, factor)
    if not settings.in_row_kernels:
        factor = _field_factors(g, w, cnt, settings, field, num_fields)
        g *= factor[:, None]
    return g, factor


def _field_factors(
    g: Array, w: Array, cnt: Array, settings: RowSettings, field: Array | None, num_fields: int
) -> Array:
    """Compute the factors [u] of clips that need norms of whole fields; g already includes L2."""
    if field is None or settings.clip == "global":
        field, num_fields = cupy.zeros(len(g), np.int64), 1
    norms = cupy.sqrt(_by_field(_squares(g), field, num_fields))
    threshold = cupy.full(num_fields, settings.bound, np.float64)
    if settings.clip == "adaptive_field":
        cnt_f = cupy.maximum(_by_field(cnt, field, num_fields), 1)
        sizes = cupy.sqrt(_by_field(_squares(w), field, num_fields))
        threshold = cnt_f * settings.r * sizes
    elif settings.clip not in ("global", "field"):
        raise lacks_clip(settings.clip)
    safe = cupy.where(norms > 0, norms, 1.0)
    factors = cupy.where(norms > 0, cupy.minimum(threshold / safe, 1.0), 1.0)
    return factors[field].astype(np.float32)


def _squares(x: Array) -> Array:
    """Return the sum of squares of each row of x [u, d], float64 [u]."""
    u, d = x.shape
    square = cupy.empty(u, np.float64)
    _launch_rows("row_squares", d, u, x, np.int64(u), np.int32(d), square)
    return square


def _by_field(x: Array, field: Array, num_fields: int) -> Array:
    """Sum x [u] within each field, [num_fields].

    One reduction per field, because `bincount` with weights adds in the order of its atomics.
    """
    return cupy.stack([cupy.where(field == f, x, 0).sum() for f in range(num_fields)])


def _adam_constants(settings: RowSettings) -> tuple[np.number, ...]:
    one, beta_1, beta_2 = np.float32(1), np.float32(settings.beta_1), np.float32(settings.beta_2)
    return one - beta_1, one - beta_2, np.float32(settings.epsilon)


def _check_state(**arrays: Array) -> None:
    """Reject arrays that the kernels cannot write in place."""
    for name, x in arrays.items():
        if x.dtype != np.float32 or not x.flags.c_contiguous:
            raise InputError(f"{name} must be a contiguous float32 array: it is written in place")


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
    epsilons: Array | None = None,
) -> int:
    """See `kernels.reference.replay_rows`; `last` has 32 bits.

    One thread per number, with rows sorted by their last step, so that the threads of a warp
    replay about the same number of steps.
    """
    if settings.clips_absent_rows:
        raise InputError(f"the CUDA kernels do not clip absent rows, as {settings.clip!r} does")
    _check_state(w=w, m=m, v=v)
    seen = _take_all(last, to) if rows is None else _take_behind(last, rows, to)
    behind = cupy.flatnonzero(seen < to)
    count, d = len(behind), w.shape[1]
    if count == 0:
        return 0
    order = behind[cupy.argsort(seen[behind])]
    mine = order if rows is None else rows[order].astype(np.int64)
    keep_m, keep_v, epsilon = _adam_constants(settings)
    every = cupy.full(to, epsilon) if epsilons is None else epsilons
    _launch(
        "replay_rows", d, count * d, w, m, v, mine, seen[order].astype(np.int64), np.int64(count),
        np.int32(d), cupy.ascontiguousarray(alphas, dtype=np.float32),
        cupy.ascontiguousarray(every, dtype=np.float32), np.int64(to),
        keep_m, keep_v, np.float32(2 * settings.l2),
    )  # fmt: skip
    return count


def _take_all(last: Array, to: int) -> Array:
    """Return the steps that all rows have seen [N], then set them to at least `to`."""
    seen = last.copy()
    cupy.maximum(last, last.dtype.type(to), out=last)
    return seen


def _take_behind(last: Array, rows: Array, to: int) -> Array:
    """Do the same for some rows [n]; all but one of a row's duplicates get at least `to`."""
    rows = cupy.ascontiguousarray(rows, dtype=np.int64)
    n, seen = len(rows), cupy.empty(len(rows), last.dtype)
    bits, goal = last.view(np.int32), last.dtype.type(to).view(np.int32)
    _launch("take_behind", 1, n, bits, rows, np.int64(n), goal, seen.view(np.int32))
    return seen


def mark_rows(last: Array, rows: Array, to: int) -> None:
    """Set the number of steps that these rows have seen to `to`."""
    last[rows] = to


def sum_rows(values: Array, groups: Groups) -> Array:
    """Sum the gradients of each distinct id, float32 [u, d]; values as in `unique_rows`.

    Raises:
        NonFiniteGradient: if a sum contains NaN or Inf.
    """
    g, bad = _sums(values, groups)
    index = int(bad[0])  # the host waits, because a bad sum must not change the tables
    if index < len(groups.ids):
        raise NonFiniteGradient(index)
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
    """See `kernels.numba.step_rows`; factors float32 [u]. This version does not change g."""
    _check_state(w=w, m=m, v=v)
    u, d = g.shape
    factor = cupy.empty(u, np.float32)
    rows = cupy.ascontiguousarray(rows, dtype=np.int64)
    starts = cupy.ascontiguousarray(starts, dtype=np.int64)
    constants = _clip_constants(settings, d, settings.kernel_id)
    _launch_rows(
        "step_rows", d, u, w, m, v, rows, g, starts, np.int64(u), np.int32(d), np.float32(alpha),
        *_adam_constants(settings), *constants, factor,
    )  # fmt: skip
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
    """See `kernels.reference.update_rows`; values as in `unique_rows`, factors float32 [u]."""
    g = sum_rows(values, groups)
    rows = cupy.arange(len(groups.ids)) if rows is None else rows
    return step_rows(w, m, v, rows, g, groups.starts, alpha, settings)


def adagrad_rows(
    w: Array,
    sums: Array,
    rows: Array,
    g: Array,
    starts: Array,
    rate: float,
    settings: RowSettings,
) -> Array:
    """See `kernels.reference.adagrad_rows`; factors float32 [u]."""
    _check_state(w=w, sums=sums)
    u, d = g.shape
    factor = cupy.empty(u, np.float32)
    rows = cupy.ascontiguousarray(rows, dtype=np.int64)
    starts = cupy.ascontiguousarray(starts, dtype=np.int64)
    constants = _clip_constants(settings, d, settings.kernel_id)
    _launch_rows(
        "adagrad_rows", d, u, w, sums, rows, g, starts, np.int64(u), np.int32(d),
        np.int32(sums.shape[1]), np.float32(rate), np.float32(settings.epsilon), *constants, factor,
    )  # fmt: skip
    return factor
