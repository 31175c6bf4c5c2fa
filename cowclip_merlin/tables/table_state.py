"""The parts of a growing table, its changes for a serving copy, and what a snapshot holds of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import admission, batch_loops
from cowclip_merlin.tables.admission import AdmissionState
from cowclip_merlin.tables.expiry import EVICT_AT, EXPIRE_AT, Dropped, ExpiryState
from cowclip_merlin.tables.id_map import NO_FIELD, IdMap
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.layout import ColumnFields, TableStatistics
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


EXPIRED, EVICTED = 0, 1
"""Places in `TableParts.dropped`."""


@dataclass(frozen=True, kw_only=True)
class TableParts:
    """What a growing table is made of.

    Attributes:
        columns: which field the ids of a column belong to.
        id_map: which row an id has.
        admission: which new ids get one.
        expiry: which ids lose it.
        memory: of the embedding tables whose rows these are.
        changes: what changed for each serving copy.
        dropped: EXPIRED: ids dropped by their time to live; EVICTED: by the bound; int64 [2].
    """

    columns: ColumnFields
    id_map: IdMap
    admission: AdmissionState
    expiry: ExpiryState
    memory: tuple[RowMemory, ...]
    changes: list[ChangeLog] = field(default_factory=list)
    dropped: Array = field(default_factory=lambda: np.zeros(2, np.int64))


def state_of(parts: TableParts) -> dict[str, Array]:
    """What a snapshot must hold, by name; most are views."""
    used = parts.id_map.high_water
    state = (
        parts.id_map.state()
        | parts.columns.state()
        | {
            "last_seen": parts.expiry.last_seen[:used],
            "numbers": np.array([parts.id_map.num_fields, *parts.expiry.numbers]),
            "counters": parts.admission.counters,
            "totals": np.array([*parts.admission.totals, *parts.dropped]),
        }
    )
    for i, memory in enumerate(parts.memory):
        state |= {f"table{i}.{name}": x for name, x in memory.used(used).items()}
    for i, log in enumerate(parts.changes):
        state |= {f"changes{i}.{name}": x for name, x in log.state().items()}
    return state


def restore(parts: TableParts, state: Mapping[str, Array]) -> None:
    """Take over a state; the parts must be new.

    Moments and counters that these parts do not have are left out. If no field of the saved table
    had to be counted, the counters begin with 0.

    Raises:
        InputError: the state is of other tables or columns, or has more rows than the capacity.
    """
    parts.columns.refuse_other(state)
    wanted, counted = _shapes(state_of(parts)), state["counters"].size > 0
    if not counted:
        wanted.pop("counters", None)
    saved = {name: shape for name, shape in _shapes(state).items() if name in wanted}
    if saved != wanted:
        raise InputError(f"the saved table has {saved}, this one has {wanted}; make it alike")
    parts.id_map.restore(state)
    used = parts.id_map.high_water
    parts.expiry.last_seen[:used] = state["last_seen"]
    parts.expiry.numbers[:] = state["numbers"][1:]
    if counted and parts.admission.counters.size:
        parts.admission.counters[:] = state["counters"]
    parts.admission.totals[:], parts.dropped[:] = state["totals"][:2], state["totals"][2:]
    for i, memory in enumerate(parts.memory):
        for name, x in memory.used(used).items():
            x[:] = state[f"table{i}.{name}"]
    for i, log in enumerate(parts.changes):
        prefix = f"changes{i}."
        log.restore({k.removeprefix(prefix): x for k, x in state.items() if k.startswith(prefix)})


def with_more_fields(
    state: Mapping[str, Array], num_fields: int, field_of_column: Sequence[int] | None
) -> dict[str, Array]:
    """Return a state with more fields after those that it has: their ids have no rows yet.

    The rows that ids without a row read are 0 in the new fields. They come after those of the other
    fields, so rows of ids move, with all that they hold.

    Args:
        state: of `state_of`, or the part of it that serving copies need.
        num_fields: F, of the new state.
        field_of_column: number of the field of each column, as in `ColumnFields`.
    """
    first = int(state["numbers"][0])
    more, grown = num_fields - first, dict(state)
    for name, x in state.items():
        if name in ("ids", "fields", "last_seen") or name.startswith("table"):
            value = NO_FIELD if name == "fields" else 0
            grown[name] = np.insert(x, [first] * more, value, axis=0)
        elif name.startswith("changes") and name.endswith(".rows"):
            grown[name] = np.where(x < first, x, x + more).astype(x.dtype)
    grown["free"] = state["free"] + np.int32(more)
    grown["numbers"] = state["numbers"].copy()
    grown["numbers"][[0, 1 + EXPIRE_AT, 1 + EVICT_AT]] += more
    return grown | ColumnFields(num_fields, field_of_column and tuple(field_of_column)).state()


def _shapes(state: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """What a state must have to be taken over: fields, counters and the length of the rows."""
    shapes = {name: x.shape[1:] for name, x in state.items() if name.startswith("table")}
    if state["counters"].size:
        shapes["counters"] = state["counters"].shape
    return {"fields": (int(state["numbers"][0]),)} | shapes


def statistics_of(parts: TableParts) -> TableStatistics:
    """Rows, memory in bytes, and totals since the start."""
    high_water, owners = parts.id_map.high_water, parts.id_map.owners
    arrays = [x for memory in parts.memory for x in memory.used(high_water).values()]
    arrays += [x[:high_water] for x in (owners.ids, owners.fields, parts.expiry.last_seen)]
    return TableStatistics(
        rows=tuple(owners.per_field.tolist()),
        high_water=high_water,
        row_bytes=sum(x.nbytes for x in arrays),
        index_bytes=parts.id_map.index_bytes,
        filter_bytes=parts.admission.counters.nbytes,
        events=int(parts.admission.totals[admission.EVENTS]),
        refused=int(parts.admission.totals[admission.REFUSED]),
        expired=int(parts.dropped[EXPIRED]),
        evicted=int(parts.dropped[EVICTED]),
    )
