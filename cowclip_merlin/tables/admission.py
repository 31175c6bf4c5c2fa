"""Which new ids get a row: those that occur often enough (Monolith, section 2.1).

"count" admits an id at its T-th occurrence, by counters that may count high but never low.
"probabilistic" admits each occurrence with 1 - 0.05^(1/T), so 95% of ids are in after T of them.
Only ids without a row are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cowclip_merlin import choices
from cowclip_merlin.checks import check_whole, one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.compiled import compiled
from cowclip_merlin.tables.id_map import seeded_hash, uniform, zeros
from cowclip_merlin.tables.layout import MOST_ADMIT
from cowclip_merlin.types import Array

EVENTS, REFUSED = 0, 1
"""Places in `AdmissionState.totals`."""


class AdmissionState(NamedTuple):
    """The filter as arrays, for compiled loops.

    Attributes:
        thresholds: T of each field, int64 [F]; 1 admits every id.
        counters: uint8 [2, width]; empty for the probabilistic filter.
        totals: EVENTS: events seen so far; REFUSED: occurrences refused; int64 [2].
        window: events after which all counters are halved; 0 for never.
        seed: of the probabilistic filter, uint64.
    """

    thresholds: Array
    counters: Array
    totals: Array
    window: int
    seed: np.uint64


@compiled
def count_up(counters: Array, start: np.uint64) -> int:
    """Count one more occurrence; the count so far, at most 255 and at least the true one.

    A count is the smaller of two counters, and only counters that are smaller than it becomes
    are raised (conservative update, Estan and Varghese, 2002).

    Args:
        counters: uint8 [2, width].
        start: hash of the id, uint64.
    """
    mask = np.uint64(counters.shape[1] - 1)
    i, j = start & mask, (start >> np.uint64(32)) & mask
    count = min(np.int64(counters[0, i]), np.int64(counters[1, j]))
    count = min(count + 1, MOST_ADMIT)
    counters[0, i] = max(np.int64(counters[0, i]), count)
    counters[1, j] = max(np.int64(counters[1, j]), count)
    return count


@compiled
def admits(state: AdmissionState, start: np.uint64, field: int, id_: int) -> bool:
    """Whether this occurrence of an id without a row gives it one; counts the occurrence.

    Args:
        state: an `AdmissionState`.
        start: `hash_id(field, id)`.
        field: its index.
        id_: int64.
    """
    threshold = state.thresholds[field]
    if threshold <= 1:
        return True
    if state.counters.shape[1] > 0:
        admitted = count_up(state.counters, start) >= threshold
    else:
        # The number of the event is in the hash, so a replay draws the same.
        bits = seeded_hash(state.seed ^ np.uint64(start), field, state.totals[EVENTS])
        admitted = uniform(bits) > 0.05 ** (1.0 / threshold)
    if not admitted:
        state.totals[REFUSED] += 1
    return admitted


@compiled
def end_event(state: AdmissionState) -> None:
    """Count an event, and halve the counters at the end of a window."""
    state.totals[EVENTS] += 1
    if state.window > 0 and state.totals[EVENTS] % state.window == 0:
        for row in range(state.counters.shape[0]):
            for i in range(state.counters.shape[1]):
                state.counters[row, i] >>= np.uint8(1)


def new_admission(
    thresholds: Sequence[int],
    *,
    kind: str = "count",
    window: int = 0,
    counters: int = 1 << 22,
    seed: int = 0,
) -> AdmissionState:
    """A filter that has seen nothing.

    Args:
        thresholds: T of each field; 1 admits every id.
        kind: one of `choices.ADMISSION_FILTERS`.
        window: events after which all counts are halved, so that old ones fade; 0 for never.
        counters: bytes of each of the two rows of counters, rounded up to a power of two. Take
            ten times the ids that occur in a window: with few counters, ids are admitted early.
        seed: of the probabilistic filter.

    Raises:
        InputError: an argument is out of its range.
    """
    one_of("admission_filter", kind, choices.ADMISSION_FILTERS)
    if not all(1 <= t <= MOST_ADMIT for t in thresholds):
        raise InputError(f"admit is {list(thresholds)}; give numbers from 1 to {MOST_ADMIT}")
    check_whole({"admit": tuple(thresholds), "window": window, "counters": counters})
    if window < 0 or not 1 <= counters <= 1 << 32:
        raise InputError("admission: give a window of 0 or more, and 1 to 2^32 counters")
    counted = kind == "count" and max(thresholds, default=1) > 1
    width = 1 << (counters - 1).bit_length() if counted else 0
    return AdmissionState(
        thresholds=np.asarray(thresholds, np.int64),
        counters=zeros((2, width), np.uint8),
        totals=np.zeros(2, np.int64),
        window=window,
        seed=np.uint64(seed % 2**64),
    )
