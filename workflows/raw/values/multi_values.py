"""Columns with several values per row: lists of parquet, or text with a separator between values.

In a table of rows, such a column is an Arrow list of texts. A list has no missing or empty values:
a row without a value has an empty list. A column of vectors is an Arrow list of float32 numbers,
as many in each row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows.raw.values.numbers import float_of, numbers_of_texts
from cowclip_merlin.workflows.raw.values.value_text import text_of_values

if TYPE_CHECKING:
    import pyarrow as pa


def lists_of_values(values: ArrowColumn, separator: str, *, where: str) -> pa.ListArray:
    """Return the values of each row as a list of texts.

    >>> import pyarrow as pa
    >>> lists_of_values(pa.array(["a|b||b", None]), "|", where="column 'tags'").to_pylist()
    [['a', 'b', 'b'], []]
    >>> lists_of_values(pa.array([[1, None], None]), "|", where="column 'tags'").to_pylist()
    [['1'], []]
    """
    values = _as_lists(values, separator, "several values per row by `multi`", where)
    starts = _starts(values)
    texts = text_of_values(_flat(values), where=where)
    return _select(starts, texts, np.asarray(texts.is_valid()))


def _as_lists(values: ArrowColumn, separator: str, what: str, where: str) -> ArrowColumn:
    """Return lists as they are, and split text."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    kind = values.type
    if types.is_dictionary(kind):  # a pandas category
        return _as_lists(values.cast(kind.value_type), separator, what, where)
    if types.is_null(kind):
        return values.cast(pa.list_(pa.string()))
    if types.is_string(kind) or types.is_large_string(kind):
        _refuse_printed_lists(values, separator, where)
        return pc.split_pattern(values, pattern=separator)
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        raise InputError(
            f"{where} is {kind}, but holds {what}; give lists, or text with {separator!r} between "
            "the values"
        )
    if types.is_nested(kind.value_type) and not types.is_struct(kind.value_type):
        raise InputError(f"{where} is {kind}, lists of lists; give one list per row")
    return values


_INFINITE_FLOAT32 = 2.0**128 - 2.0**103  # the least number that float32 rounds to infinity
_PRINTED_LIST = r"""^\s*\[.*[,'"].*\]\s*$"""


def _refuse_printed_lists(texts: ArrowColumn, separator: str, where: str) -> None:
    """Refuse text such as "['a', 'b']" in all rows that have some: each would be one value."""
    import pyarrow.compute as pc

    given = texts.filter(pc.fill_null(pc.not_equal(texts, ""), False))
    for some in (given[:2], given):  # usually, the first two tell enough
        if len(some) < 2 or not pc.all(pc.match_substring_regex(some, _PRINTED_LIST)).as_py():
            return
    raise InputError(
        f"{where} has text such as {given[0].as_py():.60}, the print of a list; give lists of "
        f"parquet, or text with {separator!r} between the values"
    )


def vectors_of_values(
    values: ArrowColumn, separator: str, length: int, *, where: str
) -> tuple[pa.ListArray, npt.NDArray[np.bool_]]:
    """Return the vectors of all rows, and which of them are right.

    >>> import pyarrow as pa
    >>> vectors, good = vectors_of_values(pa.array(["1|2.5", "3", None]), "|", 2, where="x")
    >>> vectors.to_pylist(), good.tolist()
    ([[1.0, 2.5], [0.0, 0.0], [0.0, 0.0]], [True, False, False])
    """
    import pyarrow as pa

    lists = _as_lists(values, separator, "a vector per row", where)
    starts, numbers = _starts(lists), _floats(_flat(lists), where)
    good = np.diff(starts) == length
    found = np.zeros((len(lists), length), np.float32)
    places = starts[:-1][good, None] + np.arange(length)
    with np.errstate(over="ignore"):  # infinite, which is refused below
        found[good] = numbers[places]
    good &= np.isfinite(found).all(axis=1)
    found[~good] = 0
    offsets = pa.array(np.arange(len(lists) + 1) * length, pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(found.reshape(-1))), good


def _floats(values: ArrowColumn, where: str) -> npt.NDArray[np.float64]:
    """Convert numbers or text to float64 [m]; what is no number becomes NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    kind = values.type
    if types.is_string(kind) or types.is_large_string(kind):
        values = numbers_of_texts(values)
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)):
        raise InputError(f"{where} has lists of {kind}, not of numbers; convert it")
    return np.asarray(pc.fill_null(values.cast(pa.float64(), safe=False), np.nan))


def vector_values(value: object, separator: str) -> list[object]:
    """Return the values of one vector as they are given; none if it is missing."""
    if isinstance(value, str):
        return [part.strip(" ") for part in value.split(separator)] if value else []
    return list(value) if isinstance(value, list) else []


def vector_length(value: object, separator: str) -> int:
    """Return the length of a vector; 0 if it is missing, or one of its values is no number.

    >>> vector_length("1|2.5", "|"), vector_length([1, None], "|"), vector_length(None, "|")
    (2, 0, 0)
    """
    values = vector_values(value, separator)
    return len(values) if all(_is_number(each) for each in values) else 0


def _is_number(value: object) -> bool:
    """Whether it is a number that is finite in float32, when it is rounded."""
    return value is not None and value != "" and abs(float_of(value)) < _INFINITE_FLOAT32


def vector_damage(name: str, value: object, separator: str, length: int) -> str:
    """Describe what is wrong with a vector; "" if nothing is.

    >>> vector_damage("x", "1|a", "|", 2), vector_damage("x", [1], "|", 2)
    ("x[1] is 'a', not a finite number", 'x has 1 numbers, not 2')
    """
    values = vector_values(value, separator)
    if not values:
        return f"{name} is missing; a vector needs its {length} numbers"
    if len(values) != length:
        return f"{name} has {len(values)} numbers, not {length}"
    for j, each in enumerate(values):
        if not _is_number(each):
            return damage_in_vector(name, j, each)
    return ""


def damage_in_vector(name: str, j: int, value: object) -> str:
    """Describe a value of a vector that is no finite number."""
    shown = "missing" if value is None else f"{value!r:.60}"
    return f"{name}[{j}] is {shown}, not a finite number"


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


def beyond(lists: ArrowColumn, most: int) -> int:
    """Count the values that are beyond `most` of their row."""
    return int(np.maximum(np.diff(_starts(lists)) - most, 0).sum())


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
