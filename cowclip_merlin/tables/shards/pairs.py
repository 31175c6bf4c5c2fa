"""The distinct pairs of field and id in a batch, and which worker has the row of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cowclip_merlin.batch import Ids
from cowclip_merlin.tables.loops import index_cells, pair_loops
from cowclip_merlin.types import Array


class Pairs(NamedTuple):
    """Pairs of field and id, int64 [n] each.

    Attributes:
        fields: index of the field.
        ids: the ids.
        counts: occurrences in the batch.
        times: latest event time of these occurrences.
    """

    fields: Array
    ids: Array
    counts: Array
    times: Array

    def take(self, which: Array | slice) -> Pairs:
        """Return some of the pairs."""
        return Pairs(*(column[which] for column in self))

    def packed(self) -> Array:
        """Return the pairs as few numbers, int64 [n, 3]."""
        return np.stack([self.ids, self.fields << 32 | self.counts, self.times], axis=1)

    @classmethod
    def unpacked(cls, numbers: Array) -> Pairs:
        """Return the pairs of `packed`."""
        ids, both, times = np.ascontiguousarray(numbers.T)
        return cls(both >> 32, ids, both & (2**32 - 1), times)


def distinct_pairs(ids: Ids, times: Array) -> tuple[Pairs, Array]:
    """List the distinct pairs of a batch; and the place of each occurrence among them, int32 [m].

    Args:
        ids: with one column for each field.
        times: event times, integer [b].

    >>> pairs, place = distinct_pairs(Ids(np.array([[7, 7], [7, 8]])), np.array([3, 5]))
    >>> [column.tolist() for column in pairs], place.tolist()
    ([[0, 1, 1], [7, 7, 8], [2, 1, 1], [5, 3, 5]], [0, 1, 0, 2])
    """
    every = np.arange(ids.num_fields)
    fields, seen = np.tile(every, ids.num_rows), np.repeat(times, ids.num_fields)
    if ids.lengths is not None:
        sizes = ids.lengths.reshape(-1)
        fields, seen = fields.repeat(sizes), seen.repeat(sizes)
    values = np.ascontiguousarray(ids.values, np.int64).reshape(-1)
    columns = tuple(np.empty((4, len(values)), np.int64))
    place = np.empty(len(values), np.int32)
    cells = index_cells.empty_cells(index_cells.cells_for(len(values)))
    found = pair_loops.list_pairs(
        cells, fields, values, np.ascontiguousarray(seen, np.int64), columns, place
    )
    return Pairs(*columns).take(slice(found)), place


def owners(fields: Array, ids: Array, size: int) -> Array:
    """Return the worker, of so many, that has the row of each id, int64 [n].

    >>> owners(np.array([0, 0, 1]), np.array([7, 8, 7]), 1).tolist()
    [0, 0, 0]
    """
    found = np.empty(len(ids), np.int64)
    fields, ids = np.ascontiguousarray(fields, np.int64), np.ascontiguousarray(ids, np.int64)
    pair_loops.owners_of_ids(fields, ids, size, found)
    return found
