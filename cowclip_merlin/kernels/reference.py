"""Reference row kernels in NumPy and float64: slow and simple, one row after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cowclip_merlin.choices import RowSettings, lacks_clip
from cowclip_merlin.kernels.interface import Groups, NonFiniteGradient, UniqueRows
from cowclip_merlin.types import Array


def group_rows(ids: Array) -> Groups:
    """Return the distinct ids of a batch and where they occur; see `kernels.interface.Groups`."""
    order = np.argsort(ids, kind="stable")
    unique, cnt = np.unique(ids, return_counts=True)
    return Groups(unique, np.concatenate([[0], np.cumsum(cnt)]), order)


def unique_rows(ids: Array, values: Array, micro_batches: int | None = None) -> UniqueRows:
    """Sum the gradients of equal ids, in batch order, and count them.

    Args:
        ids: integer [n].
        values: gradient of each occurrence, [n, d].
        micro_batches: of `UniqueRows.squares`; None: no squares. `cupy` has none.

    Returns:
        The distinct ids, ascending.
    """
    groups = group_rows(ids)
    unique, starts, order = groups
    g = np.zeros((len(unique), values.shape[1]))
    for i in range(len(unique)):
        for k in order[starts[i] : starts[i + 1]]:
            g[i] += values[k].astype(np.float64)
    squares = None if micro_batches is None else micro_squares(values, groups, micro_batches)
    return UniqueRows(unique, np.diff(starts), g, squares)


def micro_squares(values: Array, groups: Groups, micro_batches: int) -> Array:
    """Sum the squared gradients of the micro-batches: `sum_i (sum of the id's values in i)^2`.

    Position k of n is in micro-batch `k * micro_batches // n`.

    Args:
        values: gradient of each occurrence, [n, d], in the order of the batch.
        groups: groups of the batch's ids.
        micro_batches: number of parts.

    Returns:
        One row for each distinct id, [u, d].
    """
    squares = np.zeros((len(groups.ids), values.shape[1]))
    for i in range(len(groups.ids)):
        parts = np.zeros((micro_batches, values.shape[1]))
        for k in groups.order[groups.starts[i] : groups.starts[i + 1]]:
            parts[k * micro_batches // len(values)] += values[k].astype(np.float64)
        squares[i] = (parts**2).sum(0)
    return squares


def clip_rows(
    g: Array,
    w: Array,
    cnt: Array,
    settings: RowSettings,
    *,
    field: Array | None = None,
    num_fields: int = 1,
) -> tuple[Array, Array]:
    """Add the gradient of L2, then clip (Algorithm 1; Table 6 for the other clips).

    Args:
        g: summed data gradients [u, d].
        w: weights [u, d].
        cnt: occurrences [u].
        settings: the clip and its thresholds.
        field: field of each row, int [u], for the field-wise clips; by default one field.
        num_fields: number of fields.

    Returns:
        Clipped gradients [u, d], and the factor of each row, [u].
    """
    g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
    g = g + 2 * settings.l2 * w
    field = np.zeros(len(g), int) if field is None else field
    factor = np.ones(len(g))
    for i in range(len(g)):
        mine = field == field[i]
        norm = np.linalg.norm(g[i])
        if settings.clip == "none":
            continue
        if settings.clip == "cowclip":
            floor = max(settings.r * np.linalg.norm(w[i]), settings.floor(w.shape[1]))
            threshold = max(cnt[i], 1) * floor
        elif settings.clip == "column":
            threshold = settings.bound
        elif settings.clip == "global":
            norm, threshold = np.linalg.norm(g), settings.bound
        elif settings.clip == "field":
            norm, threshold = np.linalg.norm(g[mine]), settings.bound
        elif settings.clip == "adaptive_field":
            norm = np.linalg.norm(g[mine])
            threshold = max(cnt[mine].sum(), 1) * settings.r * np.linalg.norm(w[mine])
        else:
            raise lacks_clip(settings.clip)
        if norm > 0:
            factor[i] = min(1.0, threshold / norm)
    return g * factor[:, None], factor


def adam(
    w: Array,
    m: Array,
    v: Array,
    g: Array,
    alpha: float,
    settings: RowSettings,
    squares: Array | None = None,
) -> None:
    """Apply one step of Adam in place; alpha includes learning rate and bias corrections.

    Args:
        w: weights [d].
        m: first moments [d].
        v: second moments [d].
        g: gradient [d].
        alpha: the rate.
        settings: of Adam.
        squares: what v takes, [d]; by default g * g.
    """
    m += (g - m) * (1 - settings.beta_1)
    v += (settings.squares * (g * g if squares is None else squares) - v) * (1 - settings.beta_2)
    w -= m * alpha / (np.sqrt(v) + settings.epsilon)


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
    """Replay the steps that rows have missed, in place.

    Their gradient is only that of L2. The clip takes it as the gradient of an id that does not
    occur.

    Args:
        w: weights [N, d].
        m: Adam's first moments [N, d].
        v: Adam's second moments [N, d].
        last: number of steps each row has seen [N]; set to `to`.
        alphas: `lr * sqrt(1 - beta_2^t) / (1 - beta_1^t)` of every step, [T]; a step with a
            negative number was refused and is skipped.
        to: replay up to this step, at most T.
        settings: L2, clip (one of `choices.kernel_clips()`) and Adam.
        rows: rows to check, int [n], in any order, with or without duplicates; by default all.
        epsilons: of every step, [T], not falling, as PyTorch's: `epsilon * sqrt(1 - beta_2^t)`;
            by default that of the settings.

    Returns:
        Number of distinct rows that had missed a step.
    """
    behind, absent = 0, np.zeros(1, int)
    for i in range(len(w)) if rows is None else rows:
        behind += int(last[i] < to)
        for step in range(int(last[i]), to):
            if alphas[step] >= 0:
                g, _ = clip_rows(np.zeros_like(w[i : i + 1]), w[i : i + 1], absent, settings)
                squares = g[0] ** 2 / settings.micro_batches  # each part has its share of L2
                own = settings
                if epsilons is not None:
                    own = replace(settings, epsilon=float(epsilons[step]))
                adam(w[i], m[i], v[i], g[0], alphas[step], own, squares)
        last[i] = max(last[i], to)
    return behind


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
    """Update the rows of the batch in place: sum, L2, clip, Adam.

    Args:
        w: weights [N, d].
        m: Adam's first moments [N, d].
        v: Adam's second moments [N, d].
        groups: groups of the batch's ids.
        values: gradient of each occurrence, [n, d].
        alpha: learning rate with both bias corrections.
        settings: L2, clip (one of `choices.kernel_clips()`) and Adam.
        rows: row of each distinct id, int [u]; by default w, m and v hold only these rows, in
            the order of the ids.

    Returns:
        The clip factor of each distinct id, [u].

    Raises:
        NonFiniteGradient: if a summed gradient contains NaN or Inf; no table is changed.
    """
    ids = np.repeat(np.arange(len(groups.ids)), np.diff(groups.starts))
    summed = unique_rows(ids, np.asarray(values)[groups.order])
    for i in range(len(summed.g)):
        if not np.isfinite(summed.g[i]).all():
            raise NonFiniteGradient(i)
    rows = np.arange(len(groups.ids)) if rows is None else rows
    parts, l2 = settings.micro_batches, 2 * settings.l2 * w[rows].astype(np.float64)
    g, factor = clip_rows(summed.g, w[rows], summed.cnt, settings)
    # The sum over parts of (their gradient + L2 / parts)^2.
    squares = micro_squares(np.asarray(values), groups, parts)
    squares += (2 * summed.g * l2 + l2 * l2) / parts
    for i, k in enumerate(rows):
        adam(w[k], m[k], v[k], g[i], alpha, settings, factor[i] ** 2 * squares[i])
    return factor


def adagrad_rows(
    w: Array,
    sums: Array,
    rows: Array,
    g: Array,
    starts: Array,
    rate: float,
    settings: RowSettings,
) -> Array:
    """Apply L2, clip and Adagrad to these rows, in place.

    Args:
        w: weights [N, d].
        sums: accumulators: [N, d], or [N, 1] for row-wise Adagrad, which adds mean squares.
        rows: row of each distinct id, int [u].
        g: summed gradient of each distinct id, [u, d].
        starts: `Groups.starts`, for the counts.
        rate: learning rate.
        settings: L2, clip (one of `choices.kernel_clips()`) and epsilon.

    Returns:
        The clip factor of each distinct id, [u].
    """
    clipped, factor = clip_rows(g, w[rows], np.diff(starts), settings)
    for i, k in enumerate(rows):
        squares = clipped[i] ** 2
        sums[k] += squares if sums.shape[1] > 1 else squares.mean()
        root = np.sqrt(sums[k]) + settings.epsilon
        w[k] -= np.where(root > 0, rate * clipped[i] / np.where(root > 0, root, 1), 0)
    return factor
