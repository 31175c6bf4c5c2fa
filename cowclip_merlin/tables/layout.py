"""Which rows of an embedding table belong to which field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array


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
