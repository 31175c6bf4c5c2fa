"""A hash table of texts -> the number of each, as compiled loops over the bytes of Arrow arrays.

Linear probing. A slot is 0 if it is empty, else the upper half of the hash and the number plus 1,
32 bits each. The upper half also gives the first slot of a text, so a larger table needs no texts.
Texts are compared in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.kernels.compiled import compiled
from cowclip_merlin.kernels.loops.prefetch import AHEAD, prefetch
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    from cowclip_merlin.workflows.encoding.text_numbers import TextTable

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
def _is_at(table: TextTable, number: int, text: Array, start: int, end: int) -> bool:
    first, size = table.starts[number], end - start
    if table.starts[number + 1] - first != size:
        return False
    equal = 0
    while equal < size and table.text[first + equal] == text[start + equal]:
        equal += 1
    return equal == size


@compiled
def _slot_of(table: TextTable, tag: np.uint64, text: Array, start: int, end: int) -> np.uint64:
    """Return the slot of a text, or the empty slot where the search ended."""
    mask = np.uint64(len(table.slots) - 1)
    slot = tag & mask
    while table.slots[slot] != 0:
        entry = table.slots[slot]
        if entry >> _HALF == tag and _is_at(table, np.int64(entry & _LOWER) - 1, text, start, end):
            break
        slot = (slot + _ONE) & mask
    return slot


@compiled
def number_texts(
    table: TextTable, count: int, starts: Array, text: Array, tags: Array, numbers: Array, add: bool
) -> int:
    """Find the number of each text; with `add`, a new text gets the next number.

    Args:
        table: has room for all new texts.
        count: texts in the table.
        starts: where the texts to find start, int32 [m + 1].
        text: UTF-8, uint8 [bytes].
        tags: their `hash_texts`.
        numbers: receives the numbers, int32 [m]; -1 for a text that the table does not have.
        add: whether to add new texts.

    Returns:
        How many texts the table has now.
    """
    mask = np.uint64(len(table.slots) - 1)
    for i in range(len(tags)):
        ahead = min(i + AHEAD, len(tags) - 1)
        prefetch(table.slots, np.int64(tags[ahead] & mask))
        start, end = np.int64(starts[i]), np.int64(starts[i + 1])
        slot = _slot_of(table, tags[i], text, start, end)
        entry = table.slots[slot]
        if entry == 0 and add:
            first = table.starts[count]
            for j in range(end - start):
                table.text[first + j] = text[start + j]
            table.starts[count + 1] = first + end - start
            count += 1
            entry = tags[i] << _HALF | np.uint64(count)
            table.slots[slot] = entry
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
