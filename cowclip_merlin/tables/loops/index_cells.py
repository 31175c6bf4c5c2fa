"""An open-addressing hash table of (field, 64-bit id) -> 31-bit number, as compiled loops.

Linear probing; deletion shifts later cells back, so there are no tombstones. A cell is one line
of `cells`, int64 [size, 2] with `size` a power of two: the id, and (field + 1) * 2^32 + number.
Where the second is 0 the cell is empty. Pairs are compared in full, so none ever collide.

Monolith uses a cuckoo map; linear probing reads one cache line for most ids instead of two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cowclip_merlin.kernels.compiled import compiled
from cowclip_merlin.kernels.loops.prefetch import AHEAD, prefetch
from cowclip_merlin.tables.loops.hashing import hash_id
from cowclip_merlin.tables.loops.memory import zeros
from cowclip_merlin.types import Array

ABSENT = -1
_NUMBER = np.int64(0xFFFFFFFF)


def empty_cells(size: int) -> npt.NDArray[np.int64]:
    """Cells without ids, at least `size` of them; Linux gives memory when they are written."""
    return zeros((1 << max(size - 1, 1).bit_length(), 2), np.int64)


def cells_for(ids: int) -> int:
    """Cells that hold this many ids without growing."""
    return ids * 8 // 5 + 2


@compiled
def too_full(cells: Array, ids: int) -> bool:
    """Whether one more id would fill more than 5 of 8 cells."""
    return 8 * (ids + 1) > 5 * len(cells)


@compiled
def find_cell(cells: Array, start: np.uint64, field: int, id_: int) -> int:
    """The cell of (field, id), or the empty cell where the search ended.

    Args:
        cells: the hash table, with at least one empty cell.
        start: `hash_id(field, id)`.
        field: its index.
        id_: int64.
    """
    mask = np.uint64(len(cells) - 1)
    cell = np.uint64(start) & mask
    while cells[cell, 1] != 0:
        if cells[cell, 0] == id_ and (cells[cell, 1] >> 32) == field + 1:
            break
        cell = (cell + np.uint64(1)) & mask
    return np.int64(cell)


@compiled
def number_in(cells: Array, cell: int) -> int:
    """The number in a cell; ABSENT if it is empty."""
    value = cells[np.uint64(cell), 1]
    return value & _NUMBER if value != 0 else np.int64(ABSENT)


@compiled
def write_cell(cells: Array, cell: int, field: int, id_: int, number: int) -> None:
    """Put an id and its number into a cell that `find_cell` found."""
    cells[np.uint64(cell), 0] = id_
    cells[np.uint64(cell), 1] = ((np.int64(field) + 1) << 32) | np.int64(number)


@compiled
def remove_cell(cells: Array, cell: int) -> None:
    """Empty a cell, and shift back the cells after it that would no longer be found."""
    mask = np.uint64(len(cells) - 1)
    hole, one = np.uint64(cell), np.uint64(1)
    next_ = (hole + one) & mask
    while cells[next_, 1] != 0:
        start = hash_id((cells[next_, 1] >> 32) - 1, cells[next_, 0]) & mask
        # It may move into the hole unless its search starts after the hole.
        if ((next_ - start) & mask) >= ((next_ - hole) & mask):
            cells[hole, 0] = cells[next_, 0]
            cells[hole, 1] = cells[next_, 1]
            hole = next_
        next_ = (next_ + one) & mask
    cells[hole, 1] = 0


@compiled
def prefetch_cell(cells: Array, start: np.uint64) -> None:
    """Ask for the memory where a search that starts at this hash begins."""
    prefetch(cells, np.int64(np.uint64(2) * (np.uint64(start) & np.uint64(len(cells) - 1))))


def doubled(cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The same ids in twice as many cells."""
    wider = empty_cells(2 * len(cells))
    _copy(cells, wider)
    return wider


@compiled
def _copy(cells: Array, wider: Array) -> None:
    mask, one = np.uint64(len(wider) - 1), np.uint64(1)
    for old in range(len(cells)):
        ahead = min(old + 2 * AHEAD, len(cells) - 1)  # about half of the cells are empty
        prefetch_cell(wider, hash_id((cells[ahead, 1] >> 32) - 1, cells[ahead, 0]))
        if cells[old, 1] != 0:
            cell = hash_id((cells[old, 1] >> 32) - 1, cells[old, 0]) & mask
            while wider[cell, 1] != 0:
                cell = (cell + one) & mask
            wider[cell, 0] = cells[old, 0]
            wider[cell, 1] = cells[old, 1]
