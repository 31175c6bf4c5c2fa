"""Requests: events as mappings, as JSON has them."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import NoneType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from cowclip_merlin.online.events.events import Damage, Events, encode_inputs
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.types import Json
from cowclip_merlin.workflows.raw.values.multi_values import (
    damage_in_vector,
    vector_damage,
    vector_values,
)
from cowclip_merlin.workflows.raw.values.text_to_number import number_of_text
from cowclip_merlin.workflows.raw.values.value_text import EXACT

if TYPE_CHECKING:
    import pyarrow as pa

Cell = TypeVar("Cell")

_WHOLE = 2**63  # whole numbers below are numbers of a vector as they are, and ids


@dataclass(frozen=True)
class EncodedRequests:
    """What a model reads of some requests.

    Attributes:
        events: of the requests that are whole, in their order.
        damaged: position of a damaged request -> what is wrong.
    """

    events: Events
    damaged: dict[int, str]


def encode_requests(
    requests: Sequence[Mapping[str, Json]], features: LogFeatures
) -> EncodedRequests:
    """Ids and numbers of requests, equal to those of the same values in a log.

    Args:
        requests: column -> value, with all `features.inputs` that are not `optional`; None or ""
            is a missing value. A column with several values per row has a list, or text with its
            separator. So has a vector, which cannot be missing.
        features: the columns; label, time and key are not needed.
    """
    import pyarrow as pa

    damage = Damage(requests)
    columns = {name: column_of(requests, name, features, damage) for name in features.inputs}
    events = encode_inputs(pa.table(columns), features, damage)
    return EncodedRequests(events.filter(damage.good(len(requests))), damage.reasons)


def column_of(
    rows: Sequence[Mapping[str, Json]], name: str, features: LogFeatures, damage: Damage
) -> pa.Array:
    """Return one column of all rows as Arrow text or numbers, as lists of text, or as vectors.

    Values of one type are taken as they are. Others become text first, which says what is wrong.

    Args:
        rows: column -> value, as in JSON.
        name: of the column: an input, the time, the key or the weight.
        features: the columns.
        damage: takes what is wrong or missing.
    """
    import pyarrow as pa

    if name in features.optional:
        rows = [{name: row.get(name)} for row in rows]
    if name in features.lengths:
        return _vectors(rows, name, features, damage)
    if name in features.lists:
        separator = features.lists[name].separator
        lists = cells_of(rows, name, damage, lambda x, name: texts_of_list(x, name, separator))
        return pa.array([each or [] for each in lists], pa.list_(pa.string()))
    is_id = name in features.identifiers
    column = None
    if not (name == features.time and features.time_format):  # which reads texts only
        column = _column_of_one_type(rows, name, is_id=is_id)
    return texts_of(rows, name, damage, is_id=is_id) if column is None else column


def _column_of_one_type(
    rows: Sequence[Mapping[str, Json]], name: str, *, is_id: bool
) -> pa.Array | None:
    """Return a column of text or of numbers whose values surely count; None if some may not.

    What it returns has the ids, numbers and times that the texts of the values have.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        values = [row[name] for row in rows]
        kinds = {*map(type, values)} - {NoneType}
        if kinds <= {str}:
            return pa.array([value or None for value in values], pa.string())
        if kinds == {int} and is_id:
            whole = pa.array(values, pa.int64())
            return whole if pc.min(whole).as_py() > -_WHOLE else None
        if kinds <= {int, float} and not is_id:
            return pa.array(values, pa.float64())  # refuses integers that it would round
    except (KeyError, ValueError, OverflowError):
        pass
    return None


def texts_of(
    rows: Sequence[Mapping[str, Json]], name: str, damage: Damage, *, is_id: bool
) -> pa.Array:
    """Return one column of all rows as Arrow text; null where it is missing or wrong."""
    import pyarrow as pa

    texts = cells_of(rows, name, damage, lambda x, name: text_of_value(x, name, is_id=is_id))
    return pa.array(texts, pa.string())


def _vectors(
    rows: Sequence[Mapping[str, Json]], name: str, features: LogFeatures, damage: Damage
) -> pa.Array:
    """Return a column of vectors as lists of float32 numbers, zeros where one is wrong."""
    import pyarrow as pa

    length, separator = features.lengths[name], features.vector_separator
    cells = cells_of(
        rows,
        name,
        damage,
        lambda x, name: vector_of_value(x, name, length, separator),
        remedy=remedy_without(name, features),
    )
    vectors = np.zeros((len(rows), length), np.float32)
    for vector, cell in zip(vectors, cells):
        vector[:] = 0 if cell is None else cell
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), length)


def remedy_without(name: str, features: LogFeatures) -> str:
    """Return what to do if a column is missing from a message."""
    if length := features.lengths.get(name):
        return f"give its {length} numbers"
    return "give null for a missing value"


def cells_of(
    rows: Sequence[Mapping[str, Json]],
    name: str,
    damage: Damage,
    convert: Callable[[Json, str], Cell],
    *,
    remedy: str = "give null for a missing value",
) -> list[Cell | None]:
    """Return one column of all rows, converted; None where it is missing or wrong."""
    cells: list[Cell | None] = [None] * len(rows)
    for i, row in enumerate(rows):
        try:
            cells[i] = convert(row[name], name)
        except KeyError:
            damage.reasons.setdefault(i, f"no {name!r}; {remedy}")
        except ValueError as error:
            damage.reasons.setdefault(i, str(error))
    return cells


def texts_of_list(value: Json, name: str, separator: str) -> list[str]:
    """Return the texts of several values, without missing ones, as `lists_of_values` does.

    Args:
        value: list of values, or text with the separator between them; None is an empty list.
        name: of its column, for messages.
        separator: between the values of a text.

    Raises:
        ValueError: it is anything else, or a value in it cannot be an id.

    >>> texts_of_list("a||b", "tags", "|"), texts_of_list([7, None, "a"], "tags", "|")
    (['a', 'b'], ['7', 'a'])
    """
    if isinstance(value, str):
        value = value.split(separator)
    elif value is not None and not isinstance(value, list | tuple):
        raise ValueError(
            f"{name} is {value!r:.60} ({type(value).__name__}); give a list, or text with "
            f"{separator!r} between the values"
        )
    texts = [text_of_value(each, name, is_id=True) for each in value or ()]
    return [text for text in texts if text]


def vector_of_value(value: Json, name: str, length: int, separator: str) -> npt.NDArray[np.float32]:
    """Return the numbers of a vector, float32 [length].

    Args:
        value: list of numbers, or text with the separator between them.
        name: of its column, for messages.
        length: of the vector.
        separator: between the numbers of a text.

    Raises:
        ValueError: it is missing or anything else, or a number is not finite in float32.

    >>> vector_of_value([1, -2.5], "x", 2, "|"), vector_of_value("1|-2.5", "x", 2, "|")
    (array([ 1. , -2.5], dtype=float32), array([ 1. , -2.5], dtype=float32))
    """
    if isinstance(value, list | tuple):
        if len(value) == length and {*map(type, value)} <= {int, float}:
            vector = _finite(value)
            if vector is not None:
                return vector
        cells = [
            x if type(x) is float else _number_or_text(x, name, j) for j, x in enumerate(value)
        ]
    elif value is None or isinstance(value, str):
        cells = vector_values(value, separator)
    else:
        raise ValueError(
            f"{name} is {value!r:.60} ({type(value).__name__}); give a list of {length} numbers, "
            f"or text with {separator!r} between them"
        )
    if len(cells) != length:
        raise ValueError(vector_damage(name, cells, separator, length))
    vector = _float32([number_of_text(x) if type(x) is str else x for x in cells])
    if not np.isfinite(vector).all():
        j = int(np.isfinite(vector).argmin())
        cell = repr(cells[j]) if type(cells[j]) is float else cells[j]
        raise ValueError(damage_in_vector(name, j, cell))
    return vector


def _finite(values: Sequence[float]) -> npt.NDArray[np.float32] | None:
    """Return numbers as float32; None if one is not finite."""
    try:
        vector = _float32(values)
    except OverflowError:  # an integer beyond float64
        return None
    return vector if np.isfinite(vector).all() else None


def _float32(values: Sequence[float | None]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # infinite, which is refused
        return np.array(values, np.float64).astype(np.float32)


def _number_or_text(value: Json, name: str, j: int) -> float | str | None:
    """A value of a vector as a number, or as text if it is no plain one; None if it is missing."""
    if type(value) is int and abs(value) < _WHOLE:
        return float(value)
    text = text_of_value(value, f"{name}[{j}]", is_id=False)
    return None if text is None else text.strip(" ")


def text_of_value(value: Json, name: str, *, is_id: bool) -> str | None:
    """The text that a log would have; None for a missing value.

    Args:
        value: None, text, a boolean or a number; for a time a date, too.
        name: of its column, for messages.
        is_id: whether it becomes an id: then a float must be whole and below 2**53, as others have
            no unique text.

    Raises:
        ValueError: it is anything else.

    >>> text_of_value(47.0, "user", is_id=True), text_of_value(0.5, "age", is_id=False)
    ('47', '0.5')
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return _checked_text(value, name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return _integer_text(int(value), name)
    if isinstance(value, numbers.Real) and not is_id:
        return repr(float(value))
    if isinstance(value, numbers.Real) and value == value // 1 and abs(value) < EXACT:
        return str(int(value))
    if isinstance(value, date) and not is_id:
        return value.isoformat()
    what = "text or a whole number" if is_id else "a number"
    raise ValueError(f"{name} is {value!r:.60} ({type(value).__name__}); give {what}")


def _checked_text(text: str, name: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{name} is {text!a:.60}, which UTF-8 cannot express") from None
    return text


def _integer_text(value: int, name: str) -> str:
    """Digits of a whole number; Python refuses to print thousands of them."""
    if value.bit_length() > 1000:
        raise ValueError(f"{name} has hundreds of digits; give it as text")
    return str(value)
