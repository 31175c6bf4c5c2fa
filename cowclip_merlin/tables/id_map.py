"""Which row an id has: an exact map of (field, 64-bit id) to a row of the embedding table.

Ids are hashed by splitmix64 (Steele, Lea and Flood, 2014). The hashes depend on their arguments
only, so two machines and a replay get the same numbers.

The map is an open-addressing hash table, as compiled loops. Linear probing; deletion shifts later
cells back, so there are no tombstones. A cell is one line of `cells`, int64 [size, 2] with `size` a
power of two: the id, and (field + 1) * 2^32 + number. Where the second is 0 the cell is empty.
Pairs are compared in full, so none ever collide.

Monolith uses a cuckoo map; linear probing reads one cache line for most ids instead of two.
"""

from __future__ import annotations

import math
import mmap
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.compiled import AHEAD, compiled, prefetch
from cowclip_merlin.types import Array, DType

_LARGE = 4 << 20  # bytes; below that an array fits the caches


def zeros(shape: int | tuple[int, ...], dtype: DType) -> Array:
    """Zeros, which take memory when they are written, in pages of 2 MB where Linux has them.

    With pages of 4 kB the processor would look up the address of almost every access.

    >>> zeros((2, 3), np.int32).tolist()
    [[0, 0, 0], [0, 0, 0]]
    """
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, dtype)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without large pages, or no memory, which NumPy says better
        return np.zeros(shape, dtype)
    return np.frombuffer(memory, dtype).reshape(shape)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The step of splitmix64: 2^64 over the golden ratio."""


@compiled
def mix(x: np.uint64) -> np.uint64:
    """The output function of splitmix64: one to one on 64-bit numbers.

    >>> int(mix(GOLDEN))  # the first number of the generator with seed 0
    16294208416658607535
    """
    x = np.uint64(x)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def hash_id(field: int, id_: int) -> np.uint64:
    """The place of (field, id) in a hash table, uint64.

    Two pairs may have the same hash, so callers must compare the pairs.
    """
    return mix(np.uint64(id_) + np.uint64(field + 1) * GOLDEN)


@compiled
def seeded_hash(seed: int | np.uint64, field: int, number: int) -> np.uint64:
    """Where the stream of random numbers of (seed, field, number) starts, uint64.

    Mixed twice, so that pairs of field and number that are related get unrelated streams.
    """
    return mix(mix(np.uint64(seed) + np.uint64(field + 1) * GOLDEN) ^ np.uint64(number))


@compiled
def uniform(bits: np.uint64) -> np.float64:
    """A number in (0, 1] of 64 random bits, float64."""
    return (np.float64(bits >> np.uint64(11)) + 1.0) * (1.0 / 9007199254740992.0)


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


NO_FIELD = 0xFFFF
"""The field of a row that no id has."""

HIGH_WATER, FREE = 0, 1
"""Places in `RowOwners.sizes`."""


class RowOwners(NamedTuple):
    """Whose the rows are.

    Attributes:
        ids: id of each row, int64 [capacity].
        fields: field of each row, uint16 [capacity]; NO_FIELD for a free row.
        free: rows given back, the last one first out, int32 [capacity].
        sizes: HIGH_WATER: rows from here on were never used; FREE: rows in `free`; int64 [2].
        per_field: ids of each field, int64 [F].
    """

    ids: Array
    fields: Array
    free: Array
    sizes: Array
    per_field: Array


@compiled
def take_row(owners: RowOwners, field: int, id_: int) -> int:
    """A row for a new id; the caller has made sure that there is one."""
    if owners.sizes[FREE] > 0:
        owners.sizes[FREE] -= 1
        row = np.int64(owners.free[owners.sizes[FREE]])
    else:
        row = owners.sizes[HIGH_WATER]
        owners.sizes[HIGH_WATER] += 1
    owners.ids[row] = id_
    owners.fields[row] = field
    owners.per_field[field] += 1
    return row


@compiled
def give_back(cells: Array, owners: RowOwners, row: int) -> None:
    """Forget the id of a row; its number in `ids` stays until the row is taken again."""
    field, id_ = np.int64(owners.fields[row]), owners.ids[row]
    remove_cell(cells, find_cell(cells, hash_id(field, id_), field, id_))
    owners.fields[row] = NO_FIELD
    owners.per_field[field] -= 1
    owners.free[owners.sizes[FREE]] = row
    owners.sizes[FREE] += 1


@compiled
def _find(cells: Array, fields: Array, ids: Array, rows: Array) -> None:
    for i in range(len(ids)):
        cell = find_cell(cells, hash_id(fields[i], ids[i]), fields[i], ids[i])
        rows[i] = number_in(cells, cell)


@compiled
def _add(cells: Array, owners: RowOwners, fields: Array, ids: Array, rows: Array) -> None:
    for i in range(len(ids)):
        cell = find_cell(cells, hash_id(fields[i], ids[i]), fields[i], ids[i])
        if cells[cell, 1] == 0:
            write_cell(cells, cell, fields[i], ids[i], take_row(owners, fields[i], ids[i]))
        rows[i] = number_in(cells, cell)


@compiled
def _remove(cells: Array, owners: RowOwners, fields: Array, ids: Array) -> None:
    for i in range(len(ids)):
        cell = find_cell(cells, hash_id(fields[i], ids[i]), fields[i], ids[i])
        if cells[cell, 1] != 0:
            give_back(cells, owners, number_in(cells, cell))


@compiled
def _index(cells: Array, owners: RowOwners, first: int, last: int) -> None:
    for row in range(first, last):
        field = np.int64(owners.fields[row])
        if field != NO_FIELD:
            start = hash_id(field, owners.ids[row])
            write_cell(
                cells, find_cell(cells, start, field, owners.ids[row]), field, owners.ids[row], row
            )
            owners.per_field[field] += 1


class IdMap:
    """One row for each (field, id), exact, with deletion.

    Rows 0 to F - 1 belong to no id: row f is read for the ids of field f that have no row.

    Args:
        num_fields: F, at most 65,535.
        capacity: rows there are, the reserved ones with them; at most 2^31 - 1.
        cells: of the hash table at the start; it doubles when 5 of 8 are in use.

    Raises:
        InputError: the capacity has no room for ids, or is above 2^31 - 1.

    >>> ids = IdMap(num_fields=2, capacity=10)
    >>> fields, keys = np.array([0, 1, 0]), np.array([7, 7, 7])
    >>> ids.add(fields, keys).tolist()
    [2, 3, 2]
    >>> ids.find(fields, keys + np.array([0, 0, 1])).tolist()
    [2, 3, -1]
    """

    def __init__(self, num_fields: int, capacity: int, *, cells: int = 16) -> None:
        if not num_fields < capacity < 1 << 31:
            raise InputError(
                f"capacity is {capacity}; give a number of rows above that of the "
                f"{num_fields} fields and below 2^31"
            )
        self.num_fields, self.capacity = num_fields, capacity
        self.cells = empty_cells(cells)
        # Take the memory now: the first batch would wait for all of it, since ids go everywhere.
        self.cells.fill(0)
        self.owners = RowOwners(
            ids=zeros(capacity, np.int64),
            fields=zeros(capacity, np.uint16),
            free=zeros(capacity, np.int32),
            sizes=np.array([num_fields, 0]),
            per_field=np.zeros(num_fields, np.int64),
        )
        self.owners.fields[:num_fields] = NO_FIELD

    def __len__(self) -> int:
        """Number of ids."""
        return self.high_water - self.num_fields - int(self.owners.sizes[FREE])

    @property
    def high_water(self) -> int:
        """Rows from this one on were never used."""
        return int(self.owners.sizes[HIGH_WATER])

    @property
    def index_bytes(self) -> int:
        """Memory of the hash table."""
        return self.cells.nbytes

    def owner_of(self, row: int) -> tuple[int, int] | None:
        """Return field and id of a row; None if no id has it."""
        if not self.num_fields <= row < self.high_water or self.owners.fields[row] == NO_FIELD:
            return None
        return int(self.owners.fields[row]), int(self.owners.ids[row])

    def find(self, fields: Array, ids: Array) -> Array:
        """Rows of ids, int32 [n]; -1 where an id has none.

        Args:
            fields: index of each id's field, integer [n].
            ids: int64 [n].
        """
        rows = np.empty(len(ids), np.int32)
        _find(self.cells, *_pairs(fields, ids), rows)
        return rows

    def add(self, fields: Array, ids: Array) -> Array:
        """Rows of ids, int32 [n]; an id that has none gets one.

        The caller has made sure that there are n free rows.

        Args:
            fields: index of each id's field, integer [n].
            ids: int64 [n], with any duplicates.
        """
        self.grow_index(len(self) + len(ids))
        rows = np.empty(len(ids), np.int32)
        _add(self.cells, self.owners, *_pairs(fields, ids), rows)
        return rows

    def remove(self, fields: Array, ids: Array) -> None:
        """Take the rows of ids back; ids without a row are skipped.

        Args:
            fields: index of each id's field, integer [n].
            ids: int64 [n].
        """
        _remove(self.cells, self.owners, *_pairs(fields, ids))

    def grow_index(self, ids: int) -> None:
        """Make space for so many ids in the hash table, which may double it."""
        while too_full(self.cells, ids - 1):
            self.cells = doubled(self.cells)

    def state(self) -> dict[str, Array]:
        """What `restore` needs, as views; the hash table is made again from it."""
        used = slice(self.high_water)
        return {
            "ids": self.owners.ids[used],
            "fields": self.owners.fields[used],
            "free": self.owners.free[: self.owners.sizes[FREE]],
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Take over the ids of a state; the map must be new.

        Raises:
            InputError: the state has more rows than the capacity.
        """
        high_water, free = len(state["ids"]), len(state["free"])
        if high_water > self.capacity:
            raise InputError(
                f"the saved table has {high_water} rows, but capacity is {self.capacity}; "
                "use a capacity of at least that"
            )
        self.owners.ids[:high_water] = state["ids"]
        self.owners.fields[:high_water] = state["fields"]
        self.owners.free[:free] = state["free"]
        self.owners.sizes[:] = high_water, free
        self.owners.per_field[:] = 0
        self.cells = empty_cells(len(self.cells))
        self.grow_index(high_water - self.num_fields - free)
        _index(self.cells, self.owners, self.num_fields, high_water)


def _pairs(fields: Array, ids: Array) -> tuple[Array, Array]:
    return np.ascontiguousarray(fields, np.int64), np.ascontiguousarray(ids, np.int64)


def checked_pairs(fields: Array, ids: Array, num_fields: int) -> tuple[Array, Array]:
    """Fields and ids of some pairs, int64 [n].

    Raises:
        InputError: they are not two columns of equal length, or there is no such field.
    """
    fields, ids = np.asarray(fields), np.ascontiguousarray(ids, np.int64)
    whole = fields.dtype.kind in "iu" and fields.ndim == 1 and fields.shape == ids.shape
    if not whole or (len(ids) and not 0 <= fields.min() <= fields.max() < num_fields):
        raise InputError(
            f"fields and ids have shapes {fields.shape} and {ids.shape}; give two columns of "
            f"equal length, and fields from 0 to {num_fields - 1}"
        )
    return np.ascontiguousarray(fields, np.int64), ids
