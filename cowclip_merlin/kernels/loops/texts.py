"""A hash table of texts -> the number of each, as compiled loops over the bytes of Arrow arrays.

Linear probing. A slot is 0 if it is empty, else the upper half of the hash and the number plus 1,
32 bits each. The upper half also gives the first slot of a text, so a larger table needs no texts.
Texts are compared in full.

The loops are not in `workflows`, which has two import names: numba's cache on disk holds one.
"""

from __future__ import annotations

import numpy as np

from cowclip_merlin.kernels.compiled import AHEAD, compiled, prefetch
from cowclip_merlin.types import Array

_HALF = np.uint64(32)
_LOWER = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)


@compiled
def hash_texts(starts: Array, text: Array, tags: Array) -> None:
    """Compute the upper half of the hash of each text: 64-bit FNV-1a, then mixed once.

    Args:
        starts: as in Arrow, int32 [m + 1].
        text: UTF-8, uint8 [bytes].
        tags: receives the halves, uint64 [m].
    """
    for i in range(len(tags)):
        x = np.uint64(0xCBF29CE484222325)
        for place in range(starts[i], starts[i + 1]):
            x = (x ^ np.uint64(text[place])) * np.uint64(0x100000001B3)
        x = (x ^ (x >> _HALF)) * np.uint64(0xBF58476D1CE4E5B9)
        tags[i] = x >> _HALF


@compiled
def _is_at(firsts: Array, known: Array, number: int, text: Array, start: int, end: int) -> bool:
    first, size = firsts[number], end - start
    if firsts[number + 1] - first != size:
        return False
    equal = 0
    while equal < size and known[first + equal] == text[start + equal]:
        equal += 1
    return equal == size


@compiled
def _slot_of(
    slots: Array, firsts: Array, known: Array, tag: np.uint64, text: Array, start: int, end: int
) -> np.uint64:
    """Return the slot of a text, or the empty slot where the search ended."""
    mask = np.uint64(len(slots) - 1)
    slot = tag & mask
    while slots[slot] != 0:
        entry = slots[slot]
        number = np.int64(entry & _LOWER) - 1
        if entry >> _HALF == tag and _is_at(firsts, known, number, text, start, end):
            break
        slot = (slot + _ONE) & mask
    return slot


@compiled
def number_texts(
    slots: Array, firsts: Array, known: Array, count: int,
    starts: Array, text: Array, tags: Array, numbers: Array, add: bool,
) -> int:  # fmt: skip
    """Find the number of each text; with `add`, a new text gets the next number.

    Args:
        slots: the hash table, with room for all new texts, uint64 [a power of two].
        firsts: where each text of the table starts, and where the last one ends, int64.
        known: the texts of the table, with room for the new ones, UTF-8, uint8.
        count: texts in the table.
        starts: where the texts to find start, int32 [m + 1].
        text: UTF-8, uint8 [bytes].
        tags: their `hash_texts`.
        numbers: receives the numbers, int32 [m]; -1 for a text that the table does not have.
        add: whether to add new texts.

    Returns:
        How many texts the table has now.
    """
    mask = np.uint64(len(slots) - 1)
    for i in range(len(tags)):
        ahead = min(i + AHEAD, len(tags) - 1)
        prefetch(slots, np.int64(tags[ahead] & mask))
        start, end = np.int64(starts[i]), np.int64(starts[i + 1])
        slot = _slot_of(slots, firsts, known, tags[i], text, start, end)
        entry = slots[slot]
        if entry == 0 and add:
            first = firsts[count]
            for j in range(end - start):
                known[first + j] = text[start + j]
            firsts[count + 1] = first + end - start
            count += 1
            entry = tags[i] << _HALF | np.uint64(count)
            slots[slot] = entry
        numbers[i] = np.int64(entry & _LOWER) - 1
    return count


@compiled
def copy_slots(slots: Array, wider: Array) -> None:
    """Put the entries of a hash table into a larger, empty one."""
    mask = np.uint64(len(wider) - 1)
    for entry in slots:
        if entry != 0:
            slot = (entry >> _HALF) & mask
            while wider[slot] != 0:
                slot = (slot + _ONE) & mask
            wider[slot] = entry
