"""The part of a growing table that one of several workers has: the rows of its own ids.

An id belongs to the worker that `pairs.owners` names. The rows of absent ids are on every worker,
and the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import admission, expiry
from cowclip_merlin.tables.growing_table import GrowingTable
from cowclip_merlin.tables.layout import IdsOrArray
from cowclip_merlin.tables.loops import pair_loops
from cowclip_merlin.tables.loops.batch_loops import NewIds
from cowclip_merlin.tables.shards.pairs import Pairs, distinct_pairs, owners
from cowclip_merlin.types import Array


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
        expiry.event_times(pairs.times, len(pairs.times))
        self._advance(expiry.event_times(clock, 1))
        n, state = len(pairs.ids), self._parts.admission
        new = NewIds(*np.empty((2, n), np.int64), np.empty(n, np.uint32), np.zeros(1, np.int64))
        rows, place = np.empty(n, np.int32), np.zeros(1, np.int64)
        last_seen, count = self._parts.expiry.last_seen, self.num_rows
        columns = tuple(pairs)
        while not pair_loops.count_and_admit_pairs(
            self._id_map.cells, count, columns, last_seen, state, new, rows, place
        ):
            self._id_map.grow_index(count + int(new.number[0]) + 1)
        new_rows = self._create(new, rows)
        pair_loops.finish_pairs(self._id_map.cells, columns, last_seen, new_rows, rows)
        state.totals[admission.EVENTS] += events
        return self._note_changed(rows)
