"""What a serving copy reads of a growing table: the changes that reach it, and the copy itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import batch_loops
from cowclip_merlin.tables.expiry import Dropped
from cowclip_merlin.tables.id_map import NO_FIELD, IdMap
from cowclip_merlin.tables.layout import ColumnFields, IdsOrArray
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


class ServingTable:
    """A copy of the rows of a growing table, without moments and without admission.

    An id keeps the row that it has here, whatever its row in the growing table is. Not safe for
    several threads at once, except `look_up` and `read` beside each other and beside `reserve`.

    Args:
        num_fields: F; rows 0 to F - 1 are those of ids that have no row.
        capacity: rows there can be, as in the growing table.
        dims: length of a row in each embedding table.
        index_cells: cells of the index at the start.
        field_of_column: number of the field of each column of ids, if columns share a field; None:
            column f is field f.

    >>> from cowclip_merlin.tables.expiry import Dropped
    >>> copy = ServingTable(num_fields=1, capacity=9, dims=[2])
    >>> nothing = Dropped(np.array([], int), np.array([], int))
    >>> changes = Changes(np.array([0, 4]), np.array([0, 0]), np.array([0, 7]), nothing)
    >>> copy.apply(changes, [np.array([[0.0, 0.0], [1.0, 2.0]], np.float32)])
    >>> copy.read(np.array([[7], [8]]))[0].tolist()
    [[[1.0, 2.0]], [[0.0, 0.0]]]
    """

    def __init__(
        self,
        num_fields: int,
        capacity: int,
        dims: Sequence[int],
        *,
        index_cells: int = 16,
        field_of_column: Sequence[int] | None = None,
    ) -> None:
        columns = None if field_of_column is None else tuple(field_of_column)
        self._columns = ColumnFields(num_fields, columns)
        self._id_map = IdMap(num_fields, capacity, cells=index_cells)
        # Linux gives memory to the rows that are written.
        self.tables = [np.empty((capacity, dim), np.float32) for dim in dims]
        for table in self.tables:
            table[:num_fields] = 0

    def __len__(self) -> int:
        """Number of ids that have a row."""
        return len(self._id_map)

    @property
    def num_fields(self) -> int:
        """F."""
        return self._id_map.num_fields

    @property
    def num_columns(self) -> int:
        """Number of columns of ids."""
        return self._columns.num_columns

    @property
    def used_bytes(self) -> int:
        """Memory of the rows that were ever used, of their ids and of the index."""
        rows, owners = self._id_map.high_water, self._id_map.owners
        row_bytes = sum(x.itemsize * x[0].size for x in (*self.tables, owners.ids, owners.fields))
        return rows * row_bytes + self._id_map.index_bytes

    def reserve(self, ids: int) -> None:
        """Make space in the index for so many more ids, which may take as long as a copy of it."""
        self._id_map.grow_index(len(self) + ids)

    def apply(self, changes: Changes, values: Sequence[Array]) -> None:
        """Take over rows that changed, and drop the ids that are gone.

        Applying the same changes twice gives the same copy.

        Args:
            changes: since the last call; their `rows` are those of the growing table.
            values: the changed rows of each embedding table, float32 [n, d].

        Raises:
            InputError: there are not enough rows.
        """
        self._id_map.remove(*changes.gone)
        absent = changes.rows < self._id_map.num_fields
        rows = np.asarray(changes.rows, np.int32).copy()
        rows[~absent] = self._rows_of(changes.fields[~absent], changes.ids[~absent])
        for table, new in zip(self.tables, values, strict=True):
            table[rows] = new

    def _rows_of(self, fields: Array, ids: Array) -> Array:
        """Rows of ids, int32 [n]; ids without one get one."""
        rows = self._id_map.find(fields, ids)
        new = rows < 0
        free = self._id_map.capacity - self.num_fields - len(self)
        if np.count_nonzero(new) > free:
            raise InputError(
                f"{np.count_nonzero(new)} ids need a row, but of capacity "
                f"{self._id_map.capacity} only {free} are free; use the capacity of the trainer"
            )
        rows[new] = self._id_map.add(fields[new], ids[new])
        return rows

    def read(self, ids: Ids | Array) -> list[Array]:
        """Rows of ids, one float32 [b, columns, d] for each embedding table.

        With multi-valued columns, they are [m, d], one row for each id.

        Args:
            ids: int64, as `Ids` or an array [b, columns].
        """
        rows = self.look_up(ids if isinstance(ids, Ids) else Ids(ids)).values
        return [table[rows] for table in self.tables]

    def look_up(self, ids: IdsOrArray) -> IdsOrArray:
        """Rows of ids, int32; the number of the field where an id has none.

        Args:
            ids: int64, as `Ids` or an array [b, columns]; the rows have the same form.
        """
        by_field, places = self._columns.split(ids)
        return self._columns.join(ids, batch_loops.look_up(self._id_map, by_field), places)

    def state(self) -> dict[str, Array]:
        """What `restore` needs, by name; most are views."""
        used = self._id_map.high_water
        rows = {f"table{i}": table[:used] for i, table in enumerate(self.tables)}
        return self._id_map.state() | rows

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over a state; this copy must be new.

        Raises:
            InputError: the state has more rows than the capacity.
        """
        self._id_map.restore(dict(state))
        for i, table in enumerate(self.tables):
            table[: self._id_map.high_water] = state[f"table{i}"]
