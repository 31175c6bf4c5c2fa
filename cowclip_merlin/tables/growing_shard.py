"""A growing table in parts: each worker has the rows of its own ids.

An id belongs to the worker that `owners` names. The rows of absent ids are on every worker, and the
same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import admission, batch_loops, expiry, id_map
from cowclip_merlin.tables.growing_table import GrowingTable
from cowclip_merlin.tables.id_map import NO_FIELD
from cowclip_merlin.tables.layout import IdsOrArray
from cowclip_merlin.tables.snapshot import part_of
from cowclip_merlin.types import Array

_BY_ROW = ("ids", "fields", "last_seen")


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
    fields = batch_loops.fields_of(ids).astype(np.int64)
    seen = np.repeat(times, batch_loops.ids_of_events(ids))
    values = np.ascontiguousarray(ids.values, np.int64).reshape(-1)
    columns = tuple(np.empty((4, len(values)), np.int64))
    place = np.empty(len(values), np.int32)
    cells = id_map.empty_cells(id_map.cells_for(len(values)))
    found = batch_loops.list_pairs(
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
    batch_loops.owners_of_ids(fields, ids, size, found)
    return found


class GrowingShard(GrowingTable):
    """Gives rows to the ids of one worker, as `GrowingTable` does to all.

    Args:
        *arguments: of `GrowingTable`.
        rank: number of this worker.
        size: number of workers.
        max_rows: ids that may have a row on all workers; each worker may have its share of them.
        **more: of `GrowingTable`. The filter must be "count", without a window: the others depend
            on the order of all events.

    Raises:
        InputError: an argument is out of its range.
    """

    def __init__(
        self, *arguments: Any, rank: int, size: int, max_rows: int | None = None, **more: Any
    ) -> None:
        self.rank, self.size = rank, size
        if more.get("admission_filter", "count") != "count" or more.get("window"):
            raise InputError(
                "`admission_filter` and `window` of several workers: they depend on the order of "
                'all events; use "count" without a window, or one worker'
            )
        if max_rows is not None and max_rows < size:
            raise InputError(f"max_rows is {max_rows}, but there are {size} workers; use more")
        share = None if max_rows is None else max_rows // size + (rank < max_rows % size)
        super().__init__(*arguments, max_rows=share, **more)

    def split(self, ids: IdsOrArray, times: Array) -> tuple[Pairs, Array]:
        """List the distinct pairs of some events; and the place of each occurrence, int32 [m].

        Args:
            ids: int64, as `Ids` or an array [b, columns].
            times: event times, integer [b].
        """
        by_field, places = self._columns.split(ids)
        pairs, place = distinct_pairs(by_field, times)
        values = ids.values if isinstance(ids, Ids) else ids
        return pairs, self._columns.join(values, place, places).reshape(-1)

    def takes(self, fields: Array, ids: Array) -> Array:
        """Return which pairs of field and id belong to this worker, bool [n]."""
        return owners(fields, ids, self.size) == self.rank

    def owners(self, pairs: Pairs) -> Array:
        """Return the worker of each pair, int64 [n]."""
        return owners(pairs.fields, pairs.ids, self.size)

    def lookup_pairs(self, pairs: Pairs) -> Array:
        """Rows of pairs of this worker, int32 [n], that of the field's absent ids without one."""
        rows = self._id_map.find(pairs.fields, pairs.ids)
        return np.where(rows < 0, pairs.fields, rows).astype(np.int32)

    def admit_pairs(self, pairs: Pairs, *, events: int, clock: int) -> Array:
        """Rows of pairs that are about to be trained on, int32 [n]; new ids get theirs.

        It is `admit(beside_step=True)` for the ids of this worker in the batches of all workers.

        Args:
            pairs: of this worker; those of several workers may be equal.
            events: in the batches of all workers.
            clock: latest event time in them.

        Raises:
            InputError: there are not enough rows, or a time is wrong.
        """
        times = expiry.event_times(pairs.times, len(pairs.times))
        self._advance(expiry.event_times(clock, 1))
        fields, ids, counts = pairs.fields.astype(np.int32), pairs.ids, pairs.counts
        rows = self._admit(batch_loops.of_pairs(fields, ids, counts, times))
        self._admission.totals[admission.EVENTS] += events
        return rows


def rows_of(state: Mapping[str, Array], rank: int, size: int) -> dict[str, Array]:
    """Return the state of a growing table with only the rows that one worker has.

    Changes for servers are left out: after `restore`, all rows count as changed.
    """
    fields, ids = state["fields"], state["ids"]
    own = np.flatnonzero(fields != NO_FIELD)
    own = own[owners(fields[own], ids[own], size) == rank]
    reserved = np.arange(len(fields)) < _reserved(state)
    rows = np.concatenate([np.flatnonzero(reserved), own[~reserved[own]]])
    kept = {name: x for name, x in state.items() if not name.startswith("changes")}
    kept |= {name: x[rows] for name, x in kept.items() if _is_by_row(name)}
    return kept | {"free": state["free"][:0]}


def merged(states: Sequence[Mapping[str, Array]], *, first: bool = True) -> dict[str, Array]:
    """Join the states of tables that have different ids.

    Counters are the largest of all: a count may be high, but never low.

    Args:
        states: of `rows_of`.
        first: whether totals are those of all tables; if not, totals but that of events are 0.
    """
    reserved, whole = _reserved(states[0]), dict(states[0])
    for name in whole:
        parts = [state[name] for state in states]
        if _is_by_row(name):
            whole[name] = np.concatenate([parts[0], *(x[reserved:] for x in parts[1:])])
        elif name == "counters":
            whole[name] = np.maximum.reduce(parts)
        elif name == "totals":
            whole[name] = np.concatenate([parts[0][:1], sum(x[1:] for x in parts) * first])
        elif name == "numbers":  # searches begin again at the first row
            clock = max(x[1] for x in parts)
            whole[name] = np.array([reserved, clock, reserved, reserved, 0, 0], np.int64)
    return whole


class GrowingParts(NamedTuple):
    """The arrays of a growing table in snapshots, of which each worker has those of its ids.

    Attributes:
        prefix: what their names begin with.
    """

    prefix: str

    def has(self, name: str) -> bool:
        """Whether an array is one of them."""
        return name.startswith(self.prefix)

    def joined(
        self, parts: Iterator[dict[str, Array]], count: int, rank: int, size: int
    ) -> dict[str, Array]:
        """Return the rows of one of `size` workers, from the parts of `count` workers."""
        own = [rows_of(part_of(part, self.prefix), rank, size) for part in parts]
        return {f"{self.prefix}{name}": x for name, x in merged(own, first=rank == 0).items()}


def _reserved(state: Mapping[str, Array]) -> int:
    """The rows of absent ids, which all parts have: those before the first one of an id."""
    return int(state["numbers"][0])


def _is_by_row(name: str) -> bool:
    return name in _BY_ROW or name.startswith("table")
