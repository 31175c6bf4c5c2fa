"""An embedding table that grows: collisionless, with expiry and frequency filtering (Monolith).

Liu et al., "Monolith: Real Time Recommendation System With Collisionless Embedding Table", 2022
(arXiv 2209.07663), section 2.1. Unlike there, an id gets its row before the forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cowclip_merlin import choices
from cowclip_merlin.batch import Ids
from cowclip_merlin.checks import check_whole, one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import admission, batch_loops, expiry
from cowclip_merlin.tables.admission import new_admission
from cowclip_merlin.tables.batch_loops import NewIds, Occurrences
from cowclip_merlin.tables.expiry import EVICT_AT, EXPIRE_AT, Dropped
from cowclip_merlin.tables.id_map import NO_FIELD, IdMap, cells_for, checked_pairs
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.layout import ColumnFields, FieldRules, IdsOrArray, TableStatistics
from cowclip_merlin.tables.serving_table import ChangeLog
from cowclip_merlin.types import Array

EXPIRED, EVICTED = 0, 1
"""Why an id is dropped: by its time to live, or by the bound on rows."""

SLICE = 100_000
"""Rows that one call of `GrowingTable.expire` looks at."""


class GrowingTable:
    """Gives every admitted (field, id) a row of its own, and takes it back when the id is old.

    Row f below F is read for the ids of field f that have no row. Not safe for several threads at
    once, except `lookup` beside `lookup`.

    Args:
        fields: F rules, in the order of the ids' columns.
        memory: of the embedding tables whose rows these are; all have the same capacity.
        capacity: rows of each of them, the F reserved ones with them.
        max_rows: ids that may have a row; beyond it the oldest go. None: as many as there is
            space for, then an error.
        admission_filter: "count" or "probabilistic"; see `cowclip_merlin.tables.admission`.
        window: events after which occurrences count half; 0 for never.
        counters: bytes of each of the two rows of counters.
        absent: "trained": ids without a row read a row of their field that is trained like any
            other; "zeros": they read zeros, as in Monolith. A step must then not change rows below
            F; the five models see to it.
        seed: of the probabilistic filter.
        index_cells: cells of the index at the start. None: with `max_rows` enough for all rows, so
            that the index never pauses to grow; else 16.
        field_of_column: number of the field of each column of ids, if columns share a field; None:
            column f is field f.

    Raises:
        InputError: an argument is out of its range.

    >>> w = np.empty((10, 1), np.float32)
    >>> memory = [RowMemory(w=w, std=1.0)]
    >>> table = GrowingTable([FieldRules(admit=2)], memory=memory, capacity=10)
    >>> ids = np.array([[7], [8], [7]])
    >>> table.admit(ids, now=0).tolist()  # the second 7 admits it; 8 reads row 0
    [[1], [0], [1]]
    >>> table.lookup(ids).tolist(), table.num_rows
    ([[1], [0], [1]], 1)
    """

    def __init__(
        self,
        fields: Sequence[FieldRules],
        *,
        memory: Sequence[RowMemory],
        capacity: int,
        max_rows: int | None = None,
        admission_filter: str = "count",
        window: int = 0,
        counters: int = 1 << 22,
        absent: str = "trained",
        seed: int = 0,
        index_cells: int | None = None,
        field_of_column: Sequence[int] | None = None,
    ) -> None:
        self.fields, self.memory, self.capacity = tuple(fields), tuple(memory), capacity
        self.max_rows = capacity - len(fields) if max_rows is None else max_rows
        self.bounded, self.absent = max_rows is not None, absent
        self._refuse_wrong()
        columns = None if field_of_column is None else tuple(field_of_column)
        self._columns = ColumnFields(len(fields), columns)
        cells = index_cells or (cells_for(self.max_rows) if self.bounded else 16)
        self._id_map = IdMap(len(fields), capacity, cells=cells)
        self._held = np.empty(0, np.int32)
        self._initialize_absent()
        self._admission = new_admission(
            [rules.admit for rules in fields],
            kind=admission_filter,
            window=window,
            counters=counters,
            seed=seed,
        )
        self._expiry = expiry.new_expiry(fields, capacity)
        self._changes: list[ChangeLog] = []  # one for each serving copy
        self._dropped = np.zeros(2, np.int64)  # EXPIRED, EVICTED

    def _refuse_wrong(self) -> None:
        most = self.capacity - len(self.fields)
        if not self.fields:
            raise InputError("fields is empty: give the rules of each field")
        one_of("absent", self.absent, choices.ABSENT_ROWS)
        check_whole({"capacity": self.capacity, "max_rows": self.max_rows})
        if most < 1:
            raise InputError(
                f"capacity is {self.capacity}; give more, as {len(self.fields)} rows are those of "
                "absent ids"
            )
        if not 1 <= self.max_rows <= most:
            raise InputError(
                f"max_rows is {self.max_rows} at capacity {self.capacity}; give 1 to {most}, as "
                f"{len(self.fields)} rows are those of absent ids"
            )
        if any(len(rows.w) != self.capacity for rows in self.memory):
            raise InputError(f"capacity is {self.capacity}, but a table has other rows")

    @property
    def num_fields(self) -> int:
        """F."""
        return len(self.fields)

    @property
    def field_of_column(self) -> tuple[int, ...] | None:
        """The number of the field of each column of ids; None: column f is field f."""
        return self._columns.of_column

    @property
    def num_rows(self) -> int:
        """Ids that have a row."""
        return len(self._id_map)

    @property
    def clock(self) -> int:
        """The latest event time so far, in seconds."""
        return int(self._expiry.numbers[expiry.CLOCK])

    @property
    def evicted_until(self) -> int:
        """Event time up to which the newest search for the oldest ids drops them; 0 at first."""
        return int(self._expiry.numbers[expiry.CUTOFF])

    def admit(self, ids: IdsOrArray, now: Array | int, *, beside_step: bool = False) -> IdsOrArray:
        """Rows of a batch that is about to be trained on, int32; new ids get theirs.

        An id that reaches its threshold in this batch has its row at all its occurrences here.
        It may drop ids to make room, so call it between steps, or give `hold` the running step's
        rows.

        Args:
            ids: int64, as `Ids` or an array [b, columns]; the rows have the same form.
            now: event times in whole seconds, [b] or one for all, 0 to 2^32 - 1.
            beside_step: whether a step runs. The check that TensorFlow has not moved the tables
                then has to wait for `check_memory`.

        Raises:
            InputError: there are not enough rows, or a time or the shape of the ids is wrong.
        """
        checked, places = self._columns.split(ids)
        if not beside_step:
            self.check_memory()
        times = expiry.event_times(now, checked.num_rows)
        self._advance(times)
        rows = self._admit(batch_loops.of_batch(checked, times))
        return self._columns.join(ids, rows, places)

    def _admit(self, batch: Occurrences) -> Array:
        """Rows of occurrences, int32 [m]; new ids get theirs."""
        last_seen = self._expiry.last_seen
        new = batch_loops.collect_new(self._id_map, self._admission, last_seen, batch)
        new_rows = self._create(new, batch.rows)
        batch_loops.finish_rows(self._id_map.cells, batch, last_seen, new_rows)
        return self._note_changed(batch.rows)

    def last_seen(self, rows: Array) -> Array:
        """Latest event time of the ids of rows, uint32 of the rows' shape; not of absent ids.

        Args:
            rows: from `lookup`.
        """
        return self._expiry.last_seen[rows]

    def takes(self, fields: Array, ids: Array) -> Array:
        """Return which pairs of field and id may have a row in this table, bool [n]: all."""
        return np.ones(len(ids), np.bool_)

    def insert(self, fields: Array, ids: Array, now: Array | int) -> Array:
        """Rows of ids, int32 [n], each admitted at once; for a table that starts from a run.

        Args:
            fields: index of each id's field, integer [n].
            ids: int64 [n], distinct in their field.
            now: event times in whole seconds, [n] or one for all.

        Raises:
            InputError: there are not enough rows, or a pair or a time is wrong.
        """
        fields, ids = checked_pairs(fields, ids, self.num_fields)
        self.check_memory()
        times, rows = expiry.event_times(now, len(ids)), self._id_map.find(fields, ids)
        new = rows < 0
        if self.num_rows + np.count_nonzero(new) > self.max_rows:
            self._refuse_full(np.count_nonzero(new))
        self._advance(times)
        rows[new] = self._id_map.add(fields[new], ids[new])
        self._initialize(rows[new], fields[new], ids[new])
        last_seen = self._expiry.last_seen
        last_seen[rows] = np.where(new, times, np.maximum(times, last_seen[rows]))
        return self._note_changed(rows)

    def lookup(self, ids: IdsOrArray) -> IdsOrArray:
        """Rows of ids, int32, that of the field's absent ids where an id has none.

        Nothing is counted or created.

        Args:
            ids: int64, as `Ids` or an array [b, columns]; the rows have the same form.
        """
        checked, places = self._columns.split(ids)
        return self._columns.join(ids, batch_loops.look_up(self._id_map, checked), places)

    def hold(self, rows: Ids | Array) -> None:
        """Keep the ids of these rows until the next call, as a running step uses the rows.

        Args:
            rows: from `admit`, or int32 of any shape.
        """
        rows = rows.values if isinstance(rows, Ids) else rows
        batch_loops.mark(self._expiry.in_batch, self._held, False)
        self._held = rows
        batch_loops.mark(self._expiry.in_batch, self._held, True)

    def check_memory(self) -> None:
        """Check that TensorFlow has not moved the tables; no step may run meanwhile.

        Raises:
            InputError: new rows would not be written where the model reads them.
        """
        for memory in self.memory:
            memory.check()

    def expire(self, rows: int = SLICE) -> int:
        """Drop the overdue ids among the next `rows` rows; returns how many.

        A call continues where the last one ended and begins again after the last row. Rows that a
        running step reads or writes must not be dropped, so call it between steps, or give `hold`
        those rows.
        """
        dropped = expiry.expire(self._id_map, self._expiry, rows)
        return self._note_gone(EXPIRED, dropped)

    def track_changes(self, most_gone: int | None = None) -> ChangeLog:
        """Start to remember changes for a serving copy; each copy needs a log of its own.

        All rows that are in use count as changed at first. The log grows until it is cleared, so
        give it to `stop_tracking` when its copy needs no more changes.

        Args:
            most_gone: see `ChangeLog`.
        """
        log = ChangeLog(self._id_map, most_gone)
        self._changes.append(log)
        return log

    def stop_tracking(self, log: ChangeLog) -> None:
        """Forget a log of `track_changes`."""
        self._changes.remove(log)

    def owner_of(self, row: int) -> tuple[int, int] | None:
        """Return index of the field and id of a row; None if no id has it."""
        return self._id_map.owner_of(row)

    def statistics(self) -> TableStatistics:
        """Rows, memory in bytes, and totals since the start."""
        high_water, owners = self._id_map.high_water, self._id_map.owners
        arrays = [x for memory in self.memory for x in memory.used(high_water).values()]
        arrays += [x[:high_water] for x in (owners.ids, owners.fields, self._expiry.last_seen)]
        return TableStatistics(
            rows=tuple(owners.per_field.tolist()),
            high_water=high_water,
            row_bytes=sum(x.nbytes for x in arrays),
            index_bytes=self._id_map.index_bytes,
            filter_bytes=self._admission.counters.nbytes,
            events=int(self._admission.totals[admission.EVENTS]),
            refused=int(self._admission.totals[admission.REFUSED]),
            expired=int(self._dropped[EXPIRED]),
            evicted=int(self._dropped[EVICTED]),
        )

    def state(self) -> dict[str, Array]:
        """What a snapshot must hold, by name; most are views, so write them before a step."""
        self.check_memory()
        used = self._id_map.high_water
        state = self._id_map.state() | self._columns.state()
        state |= {
            "last_seen": self._expiry.last_seen[:used],
            "numbers": np.array([self.num_fields, *self._expiry.numbers]),
            "counters": self._admission.counters,
            "totals": np.array([*self._admission.totals, *self._dropped]),
        }
        for i, memory in enumerate(self.memory):
            state |= {f"table{i}.{name}": x for name, x in memory.used(used).items()}
        for i, log in enumerate(self._changes):
            state |= {f"changes{i}.{name}": x for name, x in log.state().items()}
        return state

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over a state; this table must be new, and its field rules may be others.

        Moments and counters that this table does not have are left out. If no field of the saved
        table had to be counted, the counters begin with 0.

        Raises:
            InputError: the state is of other tables or columns, or has more rows than the capacity.
        """
        self._columns.refuse_other(state)
        wanted, counted = _shapes(self.state()), state["counters"].size > 0
        if not counted:
            wanted.pop("counters", None)
        saved = {name: shape for name, shape in _shapes(state).items() if name in wanted}
        if saved != wanted:
            raise InputError(f"the saved table has {saved}, this one has {wanted}; make it alike")
        self._id_map.restore(dict(state))
        used, totals = self._id_map.high_water, state["totals"]
        self._expiry.last_seen[:used] = state["last_seen"]
        self._expiry.numbers[:] = state["numbers"][1:]
        if counted and self._admission.counters.size:
            self._admission.counters[:] = state["counters"]
        self._admission.totals[:], self._dropped[:] = totals[:2], totals[2:]
        for i, memory in enumerate(self.memory):
            for name, x in memory.used(used).items():
                x[:] = state[f"table{i}.{name}"]
        for i, log in enumerate(self._changes):
            at = f"changes{i}."
            log.restore({k.removeprefix(at): x for k, x in state.items() if k.startswith(at)})
        if self.absent == "zeros":  # the saved table may have trained them
            self._initialize_absent()

    def _advance(self, times: Array) -> None:
        self._expiry.numbers[expiry.CLOCK] = max(self.clock, int(times.max(initial=0)))

    def _note_changed(self, rows: Array) -> Array:
        for log in self._changes:
            log.add_rows(rows)
        return rows

    def _create(self, new: NewIds, rows: Array) -> Array:
        """Rows for the new ids of a batch, with their first values, int32 [n]."""
        n = int(new.number[0])
        short = self.num_rows + n - self.max_rows
        if short > 0 and self._make_room(short, rows) < short:
            batch_loops.forget(self._id_map.cells, new)
            self._refuse_full(n)
        new_rows = np.empty(n, np.int32)
        last_seen = self._expiry.last_seen
        batch_loops.take_rows(self._id_map.cells, self._id_map.owners, new, last_seen, new_rows)
        self._initialize(new_rows, new.fields[:n], new.ids[:n])
        return new_rows

    def _make_room(self, wanted: int, rows: Array) -> int:
        """Drop the oldest ids, or without a bound those that are overdue; how many."""
        id_map, times = self._id_map, self._expiry
        dropped = expiry.make_room(id_map, times, wanted, rows, oldest=self.bounded)
        batch_loops.mark(times.in_batch, self._held, True)  # also those that both batches use
        return self._note_gone(EXPIRED, dropped[0]) + self._note_gone(EVICTED, dropped[1])

    def _refuse_full(self, new: int) -> None:
        bound = "max_rows" if self.bounded else "capacity"
        raise InputError(
            f"the table is full: {self.num_rows} ids have a row, {new} more need one, and {bound} "
            f"allows {self.max_rows}; set a larger {bound}"
            + ("" if self.bounded else ", a time to live, or max_rows to drop the oldest")
        )

    def _initialize_absent(self) -> None:
        for memory in self.memory:
            memory.initialize_absent(self.num_fields, zeros=self.absent == "zeros")

    def _initialize(self, rows: Array, fields: Array, ids: Array) -> None:
        for memory in self.memory:
            memory.initialize(rows, fields, ids)

    def _note_gone(self, reason: int, dropped: Dropped) -> int:
        self._dropped[reason] += len(dropped.ids)
        for log in self._changes:
            log.add_gone(dropped)
        return len(dropped.ids)


def with_more_fields(
    state: Mapping[str, Array], num_fields: int, field_of_column: Sequence[int] | None
) -> dict[str, Array]:
    """Return a state with more fields after those that it has: their ids have no rows yet.

    The rows that ids without a row read are 0 in the new fields. They come after those of the other
    fields, so rows of ids move, with all that they hold.

    Args:
        state: of `GrowingTable.state`, or the part of it that serving copies need.
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
