"""Compiled loops of `kernels.numba` that group the ids of a batch and sum their gradients."""

from __future__ import annotations

import numpy as np
from numba import prange

from cowclip_merlin.kernels.compiled import AHEAD, compiled, prefetch_row
from cowclip_merlin.types import Array


@compiled
def radix_order(ids: Array, smallest: int, bits: int) -> Array:
    """Sort integers below smallest + 2^bits stably; return the order, int32 [n]; 11 bits a pass.

    Indices are unsigned, because Numba checks every signed index for counting from the end.
    """
    n, one = len(ids), np.uint32(1)
    passes = (bits + 10) // 11
    width = np.uint64((bits + passes - 1) // passes if passes else 0)
    size = np.uint64(1) << width
    begins = digit_begins(ids, smallest, passes, width)
    order, other = np.arange(n).astype(np.uint32), np.empty(n, np.uint32)
    for p in range(passes):
        shift = np.uint64(p) * width
        for i in range(n):
            k = order[i]
            digit = (np.uint64(ids[k] - smallest) >> shift) & (size - np.uint64(1))
            position = begins[p, digit]
            other[position] = k
            begins[p, digit] = position + one
        order, other = other, order
    return order.view(np.int32)


@compiled
def digit_begins(ids: Array, smallest: int, passes: int, width: int) -> Array:
    """Return where the ids of each digit begin after sorting by it, uint32 [passes, 2^width]."""
    size = np.uint64(1) << width
    begins = np.zeros((passes, np.int64(size)), np.uint32)
    for i in range(len(ids)):
        key = np.uint64(ids[i] - smallest)
        for p in range(passes):
            begins[p, (key >> (np.uint64(p) * width)) & (size - np.uint64(1))] += np.uint32(1)
    for p in range(passes):
        total = np.uint32(0)
        for digit in range(size):
            count = begins[p, digit]
            begins[p, digit] = total
            total += count
    return begins


@compiled
def find_starts(ids: Array, order: Array) -> Array:
    """Return where each distinct id begins, and n as the last entry, int32 [u + 1]."""
    n = len(ids)
    starts = np.empty(n + 1, np.int32)
    u = 0
    for i in range(n):
        if i == 0 or ids[order[i]] != ids[order[i - 1]]:
            starts[u] = i
            u += 1
    starts[u] = n
    return starts[: u + 1].copy()


@compiled(parallel=True)
def sum_groups(
    values: Array, starts: Array, order: Array, g: Array, bad: Array, threads: int
) -> None:
    """Sum the occurrences of each id in their order; mark sums that are not finite."""
    for t in prange(threads):
        # Give each thread the same number of occurrences, because a few ids have most of them.
        end = np.searchsorted(starts[:-1], (t + 1) * len(order) // threads)
        for i in range(np.searchsorted(starts[:-1], t * len(order) // threads), end):
            bad[i] = sum_group(values, starts, order, g, i)


@compiled(parallel=True)
def square_groups(
    values: Array, starts: Array, order: Array, squares: Array, micro_batches: int, threads: int
) -> None:
    """Sum over micro-batches the squared sum of each id; see `kernels.reference.micro_squares`."""
    for t in prange(threads):
        part = np.empty(values.shape[1], np.float32)
        end = np.searchsorted(starts[:-1], (t + 1) * len(order) // threads)
        for i in range(np.searchsorted(starts[:-1], t * len(order) // threads), end):
            square_group(values, starts, order, squares, i, micro_batches, part)


@compiled
def square_group(
    values: Array,
    starts: Array,
    order: Array,
    squares: Array,
    i: int,
    micro_batches: int,
    part: Array,
) -> None:
    """Do so for one id. Its positions ascend, so the occurrences of a micro-batch are neighbors.

    A micro-batch ends before position `ceil((number + 1) * n / micro_batches)`.
    """
    d, n = values.shape[1], len(order)
    squares[i, :] = np.float32(0.0)
    part[:] = np.float32(0.0)
    end = np.int64(0)
    for s in range(starts[i], starts[i + 1]):
        prefetch_row(values, order[min(s + 2 * AHEAD, n - 1)])
        k = np.int64(order[s])
        if k >= end:
            for j in range(d):
                squares[i, j] += part[j] * part[j]
                part[j] = np.float32(0.0)
            end = ((k * micro_batches // n + 1) * n + micro_batches - 1) // micro_batches
        for j in range(d):
            part[j] += values[k, j]
    for j in range(d):
        squares[i, j] += part[j] * part[j]


@compiled
def sum_group(values: Array, starts: Array, order: Array, g: Array, i: int) -> bool:
    """Sum the occurrences of one id; return whether the sum is not finite."""
    d, last = values.shape[1], len(order) - 1
    first, zero = starts[i], np.float32(0.0)
    prefetch_row(values, order[min(first + 2 * AHEAD, last)])
    for j in range(d):
        g[i, j] = values[order[first], j]
    for s in range(first + 1, starts[i + 1]):
        prefetch_row(values, order[min(s + 2 * AHEAD, last)])
        k = order[s]
        for j in range(d):
            g[i, j] += values[k, j]
    for j in range(d):
        zero += g[i, j] * np.float32(0.0)
    return zero != zero
