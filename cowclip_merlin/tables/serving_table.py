"""Rows of a growing table that a serving copy reads, and that only a sync changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import batch_loops
from cowclip_merlin.tables.id_map import IdMap
from cowclip_merlin.tables.layout import ColumnFields, IdsOrArray
from cowclip_merlin.tables.table_state import Changes
from cowclip_merlin.types import Array


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
