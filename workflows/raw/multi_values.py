"""Columns with several values per row: lists of parquet, or text with a separator between values.

In a table of rows, such a column is an Arrow list of texts. A list has no missing or empty values:
a row without a value has an empty list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.value_text import text_of_values

if TYPE_CHECKING:
    import pyarrow as pa


def lists_of_values(values: ArrowColumn, separator: str, *, where: str) -> pa.ListArray:
    """Return the values of each row as a list of texts.

    Args:
        values: Arrow array or chunked array, [n]: lists of any type that `text_of_values` takes,
            or text. A null is an empty list.
        separator: what stands between the values of a text.
        where: name of the column, and of the file if there is one, for messages.

    Returns:
        Arrow list array, [n], without nulls.

    Raises:
        InputError: if the values are neither lists nor text, or have no unique text.

    >>> import pyarrow as pa
    >>> lists_of_values(pa.array(["a|b||b", None]), "|", where="column 'tags'").to_pylist()
    [['a', 'b', 'b'], []]
    >>> lists_of_values(pa.array([[1, None], None]), "|", where="column 'tags'").to_pylist()
    [['1'], []]
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    kind = values.type
    if types.is_dictionary(kind):  # a pandas category
        return lists_of_values(values.cast(kind.value_type), separator, where=where)
    if types.is_null(kind):
        values = values.cast(pa.list_(pa.string()))
    elif types.is_string(kind) or types.is_large_string(kind):
        values = pc.split_pattern(values, pattern=separator)
    elif not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        raise InputError(
            f"{where} is {kind}, but holds several values per row by `multi`; give lists, or text "
            f"with {separator!r} between the values"
        )
    starts = _starts(values)
    texts = text_of_values(_flat(values), where=where)
    return _select(starts, texts, np.asarray(texts.is_valid()))


def cut_lists(lists: pa.ListArray, most: int, keep: str) -> pa.ListArray:
    """Return lists of at most `most` values, the first or the last ones of each row.

    >>> import pyarrow as pa
    >>> cut_lists(pa.array([["a", "b", "c"], []]), 2, "last").to_pylist()
    [['b', 'c'], []]
    """
    starts = _starts(lists)
    sizes = np.diff(starts)
    position = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    least = np.repeat(np.maximum(sizes - most, 0), sizes) if keep == "last" else 0
    return _select(starts, _flat(lists), (position >= least) & (position < least + most))


def count_cut(table: pa.Table, log_format: LogFormat) -> dict[str, int]:
    """Count, for each multi-valued column, the values beyond `max_values` of a row."""
    most = log_format.max_values
    if not most:
        return {}
    return {
        name: int(np.maximum(np.diff(_starts(table[name])) - most, 0).sum())
        for name in log_format.multi
    }


def _starts(lists: ArrowColumn) -> npt.NDArray[np.int64]:
    """Return where each row begins among all values, and the end of the last: [n + 1]."""
    import pyarrow.compute as pc

    sizes = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def _flat(lists: ArrowColumn) -> pa.Array:
    """Return the values of all rows as one array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    flat = pc.list_flatten(lists)
    return flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat


def _select(
    starts: npt.NDArray[np.int64], values: pa.Array, mask: npt.NDArray[np.bool_]
) -> pa.ListArray:
    """Return lists of the values that the mask selects, in rows that begin at `starts`."""
    import pyarrow as pa

    kept = np.concatenate(([0], np.cumsum(mask)))
    offsets = pa.array(kept[starts], pa.int32())
    return pa.ListArray.from_arrays(offsets, values.filter(pa.array(mask)))
