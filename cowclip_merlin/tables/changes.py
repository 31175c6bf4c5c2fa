"""Changes of a table for a serving copy: rows that changed and ids that are gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cowclip_merlin.tables.expiry import Dropped
from cowclip_merlin.tables.id_map import NO_FIELD, IdMap
from cowclip_merlin.tables.loops import batch_loops
from cowclip_merlin.types import Array


class Changes(NamedTuple):
    """Rows that may have changed, and ids that lost their row.

    Attributes:
        rows: distinct, in ascending order, int32 [n]; the rows of absent ids are among them.
        fields: index of each row's field, int64 [n].
        ids: id of each row, int64 [n]; 0 for the rows of absent ids.
        gone: ids that have no row now.
    """

    rows: Array
    fields: Array
    ids: Array
    gone: Dropped


class ChangeLog:
    """Remembers changes until they are known to have arrived.

    `collect` hands them out and `clear` forgets what was handed out. What changes in between is
    handed out the next time, so a delivery that failed loses nothing.

    Args:
        id_map: whose ids; all rows that are in use count as changed at first.
        most_gone: ids to remember that have lost their rows; beyond it the log is broken. None:
            all.

    Attributes:
        is_broken: whether it has forgotten ids that are gone. The copy then needs a whole state,
            and this log `begin_again`.
        breaks: how often it broke.
    """

    def __init__(self, id_map: IdMap, most_gone: int | None = None) -> None:
        self._id_map, self._most_gone = id_map, most_gone
        self.is_broken, self.breaks = False, 0
        self._flags = np.zeros(id_map.capacity, np.bool_)
        self._rows: list[Array] = []  # since the last `collect`; flagged
        self._gone: list[Dropped] = []
        self._num_gone = 0  # in `_gone`, some of them several times
        self._handed_out = _no_changes()
        self._add_all()

    def _add_all(self) -> None:
        self.add_rows(np.arange(self._id_map.high_water, dtype=np.int32))

    def add_rows(self, rows: Array) -> None:
        """Note that a step may change these rows, int32 of any shape."""
        changed = np.empty(rows.size, np.int32)
        found = batch_loops.list_changed(self._flags, rows, changed)
        if found:
            self._rows.append(changed[:found].copy())

    def add_gone(self, dropped: Dropped) -> None:
        """Note that these ids have lost their rows."""
        if len(dropped.ids) == 0 or self.is_broken:
            return
        self._gone.append(dropped)
        self._num_gone += len(dropped.ids)
        if self._most_gone is not None and self._num_gone > self._most_gone:
            self._bound_gone(self._most_gone)

    def _bound_gone(self, most: int) -> None:
        """Remember each id once, or none if these are many: to bound them takes a while."""
        gone = self._all_gone()
        self._gone, self._num_gone = [gone], len(gone.ids)
        if len(gone.ids) > most // 2:
            self._gone, self._num_gone = [], 0
            self._handed_out = self._handed_out._replace(gone=_no_changes().gone)
            self.is_broken, self.breaks = True, self.breaks + 1

    def begin_again(self) -> None:
        """Forget all: the copy gets the whole state that the table has now."""
        self.collect()
        self.clear()
        self.is_broken = False

    def collect(self) -> Changes:
        """All that changed since what was last cleared; an id that came back is not gone."""
        self._handed_out = self._all()
        for rows in self._rows:  # also those that are free now: they may be used again
            batch_loops.mark(self._flags, rows, False)
        self._rows, self._gone, self._num_gone = [], [], 0
        return self._handed_out

    def _all(self) -> Changes:
        owners, reserved = self._id_map.owners, self._id_map.num_fields
        rows = np.unique(np.concatenate([self._handed_out.rows, *self._rows]))
        rows = rows[(rows < reserved) | (owners.fields[rows] != NO_FIELD)]
        fields = np.where(rows < reserved, rows, owners.fields[rows]).astype(np.int64)
        ids = np.where(rows < reserved, 0, owners.ids[rows])
        return Changes(rows, fields, ids, self._all_gone())

    def _all_gone(self) -> Dropped:
        parts = [self._handed_out.gone, *self._gone]
        fields, ids = (np.concatenate(x) for x in zip(*parts))
        gone = self._id_map.find(fields, ids) < 0
        fields, ids = fields[gone], ids[gone]
        order = np.lexsort((ids, fields))
        fields, ids = fields[order], ids[order]
        first = np.ones(len(ids), bool)  # of equal pairs
        first[1:] = (fields[1:] != fields[:-1]) | (ids[1:] != ids[:-1])
        return Dropped(fields[first], ids[first])

    def clear(self) -> None:
        """Forget what `collect` last handed out; it has arrived."""
        self._handed_out = _no_changes()

    def state(self) -> dict[str, Array]:
        """What `restore` needs."""
        rows, _, _, gone = self._all()
        return {"rows": rows, "gone_fields": gone.fields, "gone_ids": gone.ids}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over the changes of a state; the log must be new.

        An empty state is that of a table without this log: all rows then count as changed.
        """
        self.collect()
        self.clear()
        if state:
            self.add_rows(np.asarray(state["rows"], np.int32))
            self.add_gone(Dropped(state["gone_fields"], state["gone_ids"]))
        else:
            self._add_all()


def _no_changes() -> Changes:
    empty = np.empty(0, np.int64)
    return Changes(np.empty(0, np.int32), empty, empty, Dropped(empty, empty))
