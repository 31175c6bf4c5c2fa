"""Compiled loops of `kernels.numba` that replay the steps that rows have missed.

A replay ends early when no later step can change the row; see `is_at_rest`.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from cowclip_merlin.kernels.compiled import AHEAD, compiled
from cowclip_merlin.kernels.loops.rows import CHUNK, adam_number, prefetch_state, row_factor
from cowclip_merlin.types import Array

_CHECK_EVERY = 32  # steps
_SMALL = np.float32(1e-8)  # share of one step of Adam that a weight loses when it is set to 0
_LOST = np.float32(2.0**-26)  # a smaller share of a float32 number is lost when it is added


@compiled
def is_at_rest(
    w: Array, m: Array, v: Array, x: int, d: int, largest: np.float32, epsilon: np.float32,
    l2: np.float32,
) -> bool:  # fmt: skip
    """Return whether steps without a gradient leave the d numbers from x as they are.

    Without L2, `|m| / (sqrt(v) + epsilon)` falls from step to step. So a weight rests as soon as
    the largest rate makes too small a step to change it. With L2, a weight never rests before it
    is 0. Then "at rest" is: the weight and its next step are below 1e-8 of one step of Adam.
    """
    for j in range(x, x + d):
        if l2 != 0 and abs(w[j]) > _SMALL * largest:  # of most, so it comes before the root
            return False
        step = abs(m[j]) * largest
        room = np.sqrt(v[j]) + epsilon
        if step > (_LOST * abs(w[j]) if l2 == 0 else _SMALL * largest) * room:
            return False
    return True


@compiled
def any_within(w: Array, most: np.float32) -> bool:
    """Return whether a weight is at most this large; vectorized, so most checks end here."""
    within = False
    for x in range(len(w)):
        within = within | (abs(w[x]) <= most)
    return within


@compiled
def decay_at_rest(
    w: Array, m: Array, v: Array, d: int, left: Array, to: int, keep: Array, l2: np.float32
) -> None:
    """Decay the moments of the first parts for the steps from `left` to `to`, which they rest."""
    rate_of_m, rate_of_v = np.log1p(-np.float64(keep[0])), np.log1p(-np.float64(keep[1]))
    of_m = of_v = np.float32(1.0)
    for i in range(len(left)):
        if i == 0 or left[i] != left[i - 1]:  # many leave at the same step
            steps = np.float64(to - left[i])
            of_m = np.float32(np.exp(steps * rate_of_m))
            of_v = np.float32(np.exp(steps * rate_of_v))
        for x in range(i * d, i * d + d):
            m[x] *= of_m
            v[x] *= of_v
            if l2 != 0:
                w[x] = m[x] = np.float32(0.0)


@compiled
def swap_parts(w: Array, m: Array, v: Array, d: int, i: int, k: int) -> None:
    """Swap parts i and k, of d numbers each."""
    for j in range(d):
        x, y = i * d + j, k * d + j
        w[x], w[y] = w[y], w[x]
        m[x], m[y] = m[y], m[x]
        v[x], v[y] = v[y], v[x]


@compiled
def clip_absent(
    g: Array, w: Array, d: int, n: int, kind: int, r: float, floor: float, bound: float
) -> None:
    """Clip the gradients g of n absent rows of length d, which lie one after another, in place."""
    for first in range(0, n * d, d):
        of_g, of_w = 0.0, 0.0
        for x in range(first, first + d):
            of_g += np.float64(g[x]) * np.float64(g[x])
            of_w += np.float64(w[x]) * np.float64(w[x])
        factor = row_factor(of_g, of_w, 0, kind, r, floor, bound)
        if factor < np.float32(1.0):
            for x in range(first, first + d):
                g[x] *= factor


@compiled
def replay_steps(
    w: Array, m: Array, v: Array, g: Array, d: int, alphas: Array, epsilons: Array | None,
    keep: Array, l2: np.float32, kind: int, r: float, floor: float, bound: float,
) -> None:  # fmt: skip
    """Make these steps of rows of length d, which lie one after another.

    The inner loop runs over the numbers of all rows; the compiler vectorizes it for any row length.
    """
    # If no number is above this one, no row of gradients has a norm above its threshold.
    limit = np.float32((bound if kind == 2 else floor) / np.sqrt(d) * (1 - 1e-6))
    for step in range(len(alphas)):
        alpha = alphas[step]
        if epsilons is not None:  # without them, the code is compiled as if this was not here
            keep[2] = epsilons[step]
        if kind == 0:
            for x in range(len(w)):
                w[x], m[x], v[x] = adam_number(w[x], m[x], v[x], l2 * w[x], alpha, keep)
            continue
        over = False
        for x in range(len(w)):
            g[x] = l2 * w[x]
            over = over | (abs(g[x]) > limit)  # a sum would be wider and slower
        if over:
            clip_absent(g, w, d, len(w) // d, kind, r, floor, bound)
        for x in range(len(w)):
            w[x], m[x], v[x] = adam_number(w[x], m[x], v[x], g[x], alpha, keep)


@compiled
def replay_chunk(
    w: Array, m: Array, v: Array, rows: Array, seen: Array, alphas: Array,
    epsilons: Array | None, largest: np.float32, keep: Array, l2: np.float32,
    kind: int, r: float, floor: float, bound: float,
) -> None:  # fmt: skip
    """Replay some rows, sorted by the steps that they have seen, up to the last step.

    A part is what comes to rest at once: a row; or with L2 a number, if no clip takes the norm of
    its row. Parts [done, begun) take the steps. Those before are at rest, and those after have seen
    them. A part that comes to rest swaps its place with the first that takes them; in the end, all
    go back to their places.
    """
    n, d, to = len(rows), w.shape[1], len(alphas)
    if epsilons is not None:
        keep = keep.copy()  # other threads are at other steps
    size = 1 if kind == 0 and l2 != 0 else d
    parts, per_row = n * d // size, d // size
    most = np.float32(_SMALL * largest if l2 != 0 else np.inf)  # a larger weight is not at rest
    a, b, e = np.empty(n * d, w.dtype), np.empty(n * d, w.dtype), np.empty(n * d, w.dtype)
    g = np.empty(n * d if kind else 0, w.dtype)
    left, place = np.empty(parts, np.int32), np.empty(parts, np.int32)
    for i in range(min(n, AHEAD)):
        prefetch_state(w, m, v, rows, i)
    for i in range(n):
        prefetch_state(w, m, v, rows, i + AHEAD)
        for j in range(d):
            a[i * d + j], b[i * d + j] = w[rows[i], j], m[rows[i], j]
            e[i * d + j] = v[rows[i], j]
    done, begun, step = 0, 0, np.int64(seen[0])
    while step < to:
        while begun < parts and seen[begun // per_row] <= step:
            begun += per_row
        long = largest >= 0 and to - step >= _CHECK_EVERY  # fewer steps cost less than the check
        if epsilons is not None:
            keep[2] = epsilons[step]
        if long and any_within(a[done * size : begun * size], most):
            for i in range(done, begun):
                if is_at_rest(a, b, e, i * size, size, largest, keep[2], l2):
                    swap_parts(a, b, e, size, i, done)
                    left[done], place[done] = step, i
                    done += 1
        end = to if begun == parts else min(to, np.int64(seen[begun // per_row]))
        if done < begun:
            end = min(end, step + _CHECK_EVERY)
            active = slice(done * size, begun * size)
            own = None if epsilons is None else epsilons[step:end]
            replay_steps(
                a[active], b[active], e[active], g[active], d, alphas[step:end], own, keep, l2,
                kind, r, floor, bound,
            )  # fmt: skip
        step = end
    decay_at_rest(a, b, e, size, left[:done], to, keep, l2)
    for k in range(done - 1, -1, -1):  # the last swap first, so that each part returns
        swap_parts(a, b, e, size, place[k], k)
    for i in range(n):
        for j in range(d):
            w[rows[i], j], m[rows[i], j] = a[i * d + j], b[i * d + j]
            v[rows[i], j] = e[i * d + j]


@compiled(parallel=True)
def replay_each(
    w: Array, m: Array, v: Array, rows: Array, seen: Array, alphas: Array,
    epsilons: Array | None, largest: np.float32, keep: Array, l2: np.float32,
    kind: int, r: float, floor: float, bound: float, threads: int,
) -> None:  # fmt: skip
    """Replay rows in chunks; the rows are sorted by the steps that they have seen.

    Args:
        w: weights [N, d].
        m: Adam's first moments [N, d].
        v: Adam's second moments [N, d].
        rows: distinct rows.
        seen: steps that each of these rows has seen, ascending.
        alphas: rate of each step, with both bias corrections; all are made.
        epsilons: of each step, not falling; None: that of `keep`.
        largest: of these rates; negative: make all steps, do not look for rows at rest.
        keep: see `adam_number`.
        l2: factor of a weight in its gradient.
        kind: number of the clip.
        r: of the clip `cowclip`.
        floor: of the clip `cowclip`.
        bound: of the clip `column`.
        threads: to share the rows.
    """
    size = max(1, CHUNK // w.shape[1])
    for t in prange(threads):
        # Neighbors have missed about the same number of steps, so distribute them over the threads.
        for first in range(t * size, len(rows), threads * size):
            end = first + size
            replay_chunk(
                w, m, v, rows[first:end], seen[first:end], alphas, epsilons, largest, keep, l2,
                kind, r, floor, bound,
            )  # fmt: skip
