"""Which rows and columns of ids belong to which field, and when its ids get and lose their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array

MOST_ADMIT = 255
"""Largest threshold of admission: a counter is one byte."""

LATEST = 2**32 - 1
"""Last time that can be, 2106-02-07, since tables keep 32 bits of it; also the longest `ttl`."""


@dataclass(frozen=True, kw_only=True)
class FieldRules:
    """When the ids of a field get and lose their rows.

    Attributes:
        admit: occurrences after which an id gets a row, 1 to 255.
        ttl: seconds of event time without an occurrence after which it goes; 0 for never.
        min_rows: ids of this field that stay when `max_rows` drops the oldest.
    """

    admit: int = 1
    ttl: int = 0
    min_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class TableStatistics:
    """What a growing table holds, and what it did since the start.

    Attributes:
        rows: ids that have a row, of each field.
        high_water: rows that were ever used, the reserved ones with them.
        row_bytes: memory of the used rows: weights, optimizer state, id, field and time.
        index_bytes: memory of the hash table.
        filter_bytes: memory of the counters.
        events: events seen.
        refused: occurrences of ids that were not admitted.
        expired: ids dropped by their time to live.
        evicted: ids dropped by the bound on rows.
    """

    rows: tuple[int, ...]
    high_water: int
    row_bytes: int
    index_bytes: int
    filter_bytes: int
    events: int
    refused: int
    expired: int
    evicted: int


IdsOrArray = TypeVar("IdsOrArray", Ids, Array)

_STATE = "field_of_column"


@dataclass(frozen=True)
class TableLayout:
    """Fields whose rows lie one after the other in one table; a table may hold a single field.

    Attributes:
        fields: field -> number of its rows, in the order of the rows.

    Raises:
        InputError: no field is given, or a field has no rows.

    >>> layout = TableLayout({"user": 3, "item": 2})
    >>> layout.rows, layout.offsets
    (5, (0, 3))
    """

    fields: Mapping[str, int]

    def __post_init__(self) -> None:
        """Check, and copy the mapping."""
        object.__setattr__(self, "fields", dict(self.fields))
        if not self.fields:
            raise InputError("fields is empty: give each field and its number of rows")
        for name, rows in self.fields.items():
            if isinstance(rows, bool) or not isinstance(rows, (int, np.integer)) or rows < 1:
                raise InputError(
                    f"fields: {name!r} has {rows!r} rows; give a whole number of at least 1"
                )

    @property
    def rows(self) -> int:
        """Rows of the whole table."""
        return sum(self.fields.values())

    @property
    def ends(self) -> tuple[int, ...]:
        """For each field, the row after its last one."""
        return tuple(accumulate(self.fields.values()))

    @property
    def offsets(self) -> tuple[int, ...]:
        """First row of each field."""
        return (0, *self.ends[:-1])

    def field_of_row(self, rows: npt.ArrayLike) -> Array:
        """Index of the field that each row belongs to.

        >>> TableLayout({"user": 3, "item": 2}).field_of_row([0, 2, 3]).tolist()
        [0, 0, 1]
        """
        return np.searchsorted(self.ends, rows, side="right")

    def describe(self, row: int) -> str:
        """Describe a row in an error message: its field, and its id there.

        >>> TableLayout({"user": 3, "item": 2}).describe(4)
        "id 1 of field 'item'"
        """
        index = int(self.field_of_row(row))
        return f"id {row - self.offsets[index]} of field {list(self.fields)[index]!r}"


@dataclass(frozen=True)
class ColumnFields:
    """Which field the ids of each column belong to.

    Attributes:
        num_fields: F.
        of_column: number of the field of each column; None: column f is field f.

    Raises:
        InputError: a field has no column, or there is no such field.

    >>> columns = ColumnFields(2, (0, 1, 0))
    >>> ids, places = columns.split(np.array([[7, 3, 9]]))
    >>> ids.values.tolist(), columns.join(np.array([[7, 3, 9]]), ids.values, places).tolist()
    ([7, 9, 3], [[7, 3, 9]])
    """

    num_fields: int
    of_column: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        numbers = range(self.num_fields)
        if set(numbers if self.of_column is None else self.of_column) != set(numbers):
            raise InputError(
                f"field_of_column is {self.of_column}; give each of the {self.num_fields} fields "
                "at least one column"
            )

    @property
    def num_columns(self) -> int:
        """Number of columns of ids."""
        return self.num_fields if self.of_column is None else len(self.of_column)

    def split(self, ids: Ids | Array) -> tuple[Ids, Array | None]:
        """Return the ids by field, int64; and where they were, if columns share a field.

        Args:
            ids: as `Ids` or an array [b, columns].

        Raises:
            InputError: they have another shape.
        """
        checked = _checked(ids, self.num_columns)
        return (checked, None) if self.of_column is None else checked.by_field(self.of_column)

    @staticmethod
    def join(ids: IdsOrArray, rows: Array, places: Array | None) -> IdsOrArray:
        """Return the rows of ids in the form of the ids: `Ids`, or an array of their shape.

        Args:
            ids: as `split` took them.
            rows: of the ids that `split` returned, [m].
            places: from `split`.
        """
        if places is not None:
            ordered = np.empty_like(rows)
            ordered[places] = rows
            rows = ordered
        if isinstance(ids, Ids):
            return ids.with_values(rows.reshape(ids.values.shape))
        return rows.reshape(np.shape(ids))

    def state(self) -> dict[str, Array]:
        """Return what a snapshot must hold: nothing if no columns share a field."""
        return {} if self.of_column is None else {_STATE: np.array(self.of_column, np.int64)}

    def refuse_other(self, state: Mapping[str, Array]) -> None:
        """Refuse the state of a table whose columns share other fields.

        Raises:
            InputError: they do.
        """
        if _STATE not in state and self.of_column is None:
            return
        numbers = range(int(state["numbers"][0]))
        saved, own = state.get(_STATE, numbers), self.of_column or range(self.num_fields)
        if list(saved) != list(own):
            raise InputError(
                f"the columns of the saved table have the fields {_text(saved)}, those of this one "
                f"{_text(own)}; let the same columns share a table"
            )


def _text(fields: Array | range | tuple[int, ...]) -> str:
    return ", ".join(str(int(field)) for field in fields)


def _checked(ids: Ids | Array, num_columns: int) -> Ids:
    """Return the ids of a batch, int64; an array has one id in every row and column."""
    values, lengths = ids if isinstance(ids, Ids) else (ids, None)
    values = np.ascontiguousarray(values, np.int64)
    shape = values.shape if lengths is None else lengths.shape
    if len(shape) != 2 or shape[1] != num_columns:
        raise InputError(f"ids have shape {shape}; give [rows, {num_columns}]")
    if lengths is not None and (values.shape != (lengths.sum(),) or lengths.min(initial=0) < 0):
        raise InputError(f"the lengths of {values.shape} ids are {lengths.sum()} in all")
    return Ids(values, lengths)
