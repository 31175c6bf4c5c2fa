"""Row kernels on the CPU with Numba: parallel over rows, the same bits in every run.

Arrays are float32; gradients may be bfloat16. Norms are summed in float64.
"""

from __future__ import annotations

import math

import numpy as np
from numba import get_num_threads

from cowclip_merlin import choices
from cowclip_merlin.choices import RowSettings, lacks_clip
from cowclip_merlin.kernels.interface import Groups, NonFiniteGradient, UniqueRows
from cowclip_merlin.kernels.loops import group as group_loops
from cowclip_merlin.kernels.loops import replay as replay_loops
from cowclip_merlin.kernels.loops import rows as adagrad_loops
from cowclip_merlin.kernels.loops import rows as row_loops
from cowclip_merlin.types import Array

mark_rows = row_loops.mark_rows


def group_rows(ids: Array) -> Groups:
    """See `kernels.reference.group_rows`; a radix sort."""
    ids = np.ascontiguousarray(ids)
    if len(ids) == 0:
        return Groups(ids, np.zeros(1, np.int32), np.zeros(0, np.int32))
    smallest = ids.min()
    bits = int(int(ids.max()) - int(smallest)).bit_length()
    order = group_loops.radix_order(ids, smallest, bits)
    starts = group_loops.find_starts(ids, order)
    return Groups(ids[order[starts[:-1]]], starts, order)


def _sums(values: Array, groups: Groups) -> tuple[Array, Array]:
    values = as_float32(values)
    u = len(groups.ids)
    g, bad = np.empty((u, values.shape[1]), np.float32), np.empty(u, np.bool_)
    group_loops.sum_groups(values, groups.starts, groups.order, g, bad, get_num_threads())
    return g, bad


def as_float32(values: Array) -> Array:
    """Convert gradients to contiguous float32; bfloat16 is the upper half of a float32."""
    if values.dtype.name == "bfloat16":
        wide = np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32)
    return np.ascontiguousarray(values, np.float32)


def unique_rows(ids: Array, values: Array, micro_batches: int | None = None) -> UniqueRows:
    """See `kernels.reference.unique_rows`."""
    groups = group_rows(ids)
    squares = None if micro_batches is None else square_rows(values, groups, micro_batches)
    return UniqueRows(groups.ids, np.diff(groups.starts), _sums(values, groups)[0], squares)


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
    kind = settings.kernel_id if settings.in_row_kernels else choices.CLIPS["none"].kernel_id
    row_loops.clip_each(g, w, cnt, *_constants(settings, g.shape[1], kind), factor)
    if not settings.in_row_kernels:
        factor = _field_factors(g, w, cnt, settings, field, num_fields)
        g *= factor[:, None]
    return g, factor


def _constants(settings: RowSettings, d: int, kind: int) -> tuple[object, ...]:
    return np.float32(2 * settings.l2), kind, settings.r, settings.floor(d), settings.bound


def _field_factors(
    g: Array, w: Array, cnt: Array, settings: RowSettings, field: Array | None, num_fields: int
) -> Array:
    """Compute the factors of clips that need norms of whole fields; g already includes L2."""
    if field is None or settings.clip == "global":
        field, num_fields = np.zeros(len(g), np.int64), 1
    norms = np.sqrt(_field_squares(g, field, num_fields))
    threshold = np.full(num_fields, settings.bound)
    if settings.clip == "adaptive_field":
        cnt_f = np.bincount(field, cnt, num_fields)
        threshold = (
            np.maximum(cnt_f, 1) * settings.r * np.sqrt(_field_squares(w, field, num_fields))
        )
    elif settings.clip not in ("global", "field"):
        raise lacks_clip(settings.clip)
    safe = np.where(norms > 0, norms, 1.0)
    return np.where(norms > 0, np.minimum(1.0, threshold / safe), 1.0)[field].astype(np.float32)


def _field_squares(x: Array, field: Array, num_fields: int) -> Array:
    return np.bincount(field, np.einsum("ij,ij->i", x, x, dtype=np.float64), num_fields)


def _adam_constants(settings: RowSettings, squares: float) -> Array:
    one, beta_1, beta_2 = map(np.float32, (1, settings.beta_1, settings.beta_2))
    return np.array([one - beta_1, one - beta_2, settings.epsilon, squares], np.float32)


def sum_rows(values: Array, groups: Groups) -> Array:
    """Sum the gradients of each distinct id, float32 [u, d]; the first half of `update_rows`.

    Raises:
        NonFiniteGradient: if a sum contains NaN or Inf.
    """
    g, bad = _sums(values, groups)
    if bad.any():
        raise NonFiniteGradient(int(bad.argmax()))
    return g


def square_rows(values: Array, groups: Groups, micro_batches: int) -> Array:
    """See `kernels.reference.micro_squares`; float32 [u, d]."""
    squares = np.empty((len(groups.ids), values.shape[1]), np.float32)
    group_loops.square_groups(
        as_float32(values), groups.starts, groups.order, squares, micro_batches, get_num_threads()
    )
    return squares


def step_rows(
    w: Array,
    m: Array,
    v: Array,
    rows: Array,
    g: Array,
    starts: Array,
    alpha: float,
    settings: RowSettings,
    squares: Array | None = None,
) -> Array:
    """Apply L2, clip and Adam to these rows, in place; the second half of `update_rows`.

    Args:
        w: weights [N, d].
        m: Adam's first moments [N, d].
        v: Adam's second moments [N, d].
        rows: row of each distinct id, int [u].
        g: summed gradient of each distinct id [u, d].
        starts: `Groups.starts`, for the counts.
        alpha: learning rate with both bias corrections.
        settings: L2, clip and Adam.
        squares: what `square_rows` returns, if there are several micro-batches.

    Returns:
        The clip factor of each row, float32 [u].
    """
    factor = np.empty(len(rows), np.float32)
    constants = _constants(settings, w.shape[1], settings.kernel_id)
    keep, parts = _adam_constants(settings, settings.squares), np.float32(settings.micro_batches)
    squares = g if squares is None else squares
    numbers = np.float32(alpha), keep, *constants, factor
    row_loops.step_each(w, m, v, rows, g, squares, parts, starts, *numbers)
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
    g, parts = sum_rows(values, groups), settings.micro_batches
    squares = square_rows(values, groups, parts) if parts > 1 else None
    rows = np.arange(len(groups.ids), dtype=np.int32) if rows is None else rows
    return step_rows(w, m, v, rows, g, groups.starts, alpha, settings, squares)


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
    factor = np.empty(len(rows), np.float32)
    numbers = np.float32(rate), np.float32(settings.epsilon)
    constants = _constants(settings, w.shape[1], settings.kernel_id)
    adagrad_loops.adagrad_each(w, sums, rows, g, starts, *numbers, *constants, factor)
    return factor


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
    """See `kernels.reference.replay_rows`."""
    rows = np.arange(len(w), dtype=np.int32) if rows is None else rows
    behind, seen = row_loops.take_behind(last, rows, to)
    if len(behind):
        order = group_loops.radix_order(seen, np.int32(0), int(to).bit_length())
        kind = settings.kernel_id if settings.clips_absent_rows else choices.CLIPS["none"].kernel_id
        keep = _adam_constants(settings, settings.squares / settings.micro_batches)
        constants = keep, *_constants(settings, w.shape[1], kind)
        made, seen, alphas = _without_refused(seen[order], np.asarray(alphas[:to], np.float32))
        least = settings.epsilon
        if epsilons is not None:
            epsilons = np.asarray(epsilons[:to], np.float32)[made]
            least = float(epsilons[seen[0] :].min(initial=least))
        largest = np.float32(_largest_rate(alphas[seen[0] :], least, settings))
        inputs = behind[order], seen, alphas, epsilons, largest
        replay_loops.replay_each(w, m, v, *inputs, *constants, get_num_threads())
    return len(behind)


def _without_refused(seen: Array, alphas: Array) -> tuple[Array | slice, Array, Array]:
    """Leave out the refused steps: which were made, the steps seen, and the rates made."""
    refused = alphas < 0
    if not refused.any():
        return slice(None), seen, alphas
    before = np.concatenate([[0], np.cumsum(refused)]).astype(seen.dtype)
    return ~refused, seen - before[seen], alphas[~refused]


def _largest_rate(alphas: Array, epsilon: float, settings: RowSettings) -> float:
    """Return the largest rate, or -1 if rows of these settings may not be taken to be at rest.

    The ratio of the moments must fall, and weights near 0 must not swing: see `is_at_rest`.
    """
    largest = float(alphas.max(initial=0))
    falls = settings.beta_1 <= 0.999 * math.sqrt(settings.beta_2)
    swings = 2 * settings.l2 * largest > epsilon
    return largest if falls and not swings else -1.0
