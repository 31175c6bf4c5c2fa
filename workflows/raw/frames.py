"""Rows in memory: pandas and polars frames, Arrow tables and lists of dictionaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cowclip_merlin.checks import near
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.raw.values.value_text import arrow_of_series

if TYPE_CHECKING:
    import pyarrow as pa

Frame: TypeAlias = Any
"""A pandas or polars frame, an Arrow table, or a list of dictionaries."""


def is_frame(rows: object) -> bool:
    """Return whether these are rows in memory, and not files.

    >>> is_frame([{"user": 1}]), is_frame(["a.csv"]), is_frame("a.csv")
    (True, False, False)
    """
    if hasattr(rows, "columns"):
        return True
    return isinstance(rows, list | tuple) and bool(rows) and isinstance(rows[0], Mapping)


def arrow_table(rows: Frame, names: Sequence[str] | None = None) -> pa.Table:
    """Return rows in memory as an Arrow table; NaN of pandas is a missing value.

    Args:
        rows: a pandas or polars frame, an Arrow table, or a list of dictionaries.
        names: of the columns; None: all.

    Raises:
        InputError: if a column is not there once, its name is no text, or its values have several
            types.

    >>> arrow_table([{"user": 1}, {"user": None, "tags": ["a"]}]).to_pydict()
    {'user': [1, None], 'tags': [None, ['a']]}
    """
    import pyarrow as pa

    if isinstance(rows, list | tuple):
        every = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in every}
        found, get = list(columns), columns.__getitem__
    else:
        found = list(rows.column_names if isinstance(rows, pa.Table) else rows.columns)
        get = rows.__getitem__
    for name in found if names is None else ():
        if not isinstance(name, str):
            raise InputError(f"the frame has a column {name!r}; give each column a name of text")
    wanted = found if names is None else names
    for name in wanted:
        if (count := found.count(name)) != 1:
            what = "no column" if not count else f"{count} columns"
            remedy = "" if count else near(name, map(str, found))
            raise InputError(f"the frame has {what} {name!r}{remedy or '; give each column once'}")
    return pa.table({name: _array(get(name), name) for name in wanted})


def _array(values: Any, name: str) -> pa.Array | pa.ChunkedArray:
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        return values
    if hasattr(values, "to_arrow"):  # polars
        return values.to_arrow()
    return arrow_of_series(values, name)


def parts(frame: Frame, names: Sequence[str], rows: int) -> Iterator[pa.Table]:
    """Yield these columns of at most so many rows at a time, each part as its own Arrow table.

    Raises:
        InputError: as `arrow_table`.
    """
    import pyarrow as pa

    if isinstance(frame, list | tuple):  # a part may lack a column that others have
        frame = arrow_table(frame, names)
    if not len(frame):
        arrow_table(frame, names)
    for start in range(0, len(frame), rows):
        if hasattr(frame, "iloc"):
            yield arrow_table(frame.iloc[start : start + rows], names)
        elif isinstance(frame, pa.Table):  # as a copy: slices upset Arrow 14
            some = frame.take(np.arange(start, min(start + rows, len(frame))))
            yield arrow_table(some, names)
        else:
            yield arrow_table(frame.slice(start, rows), names)
