"""Requests: events as mappings, as JSON has them."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, TypeVar

from cowclip_merlin.online.events.events import Damage, Events, encode_inputs
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.types import Json

if TYPE_CHECKING:
    import pyarrow as pa

Cell = TypeVar("Cell")


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
        requests: column -> value, with all `features.inputs`; None or "" is a missing value. A
            column with several values per row has a list, or text with its separator.
        features: the columns; label, time and key are not needed.
    """
    import pyarrow as pa

    damage = Damage()
    columns = {name: column_of(requests, name, features, damage) for name in features.inputs}
    events = encode_inputs(pa.table(columns), features, damage)
    return EncodedRequests(events.filter(damage.good(len(requests))), damage.reasons)


def column_of(
    rows: Sequence[Mapping[str, Json]], name: str, features: LogFeatures, damage: Damage
) -> pa.Array:
    """Return one column of all rows as Arrow text, or as lists of text.

    Args:
        rows: column -> value, as in JSON.
        name: of the column: an input, the time, the key or the weight.
        features: the columns.
        damage: takes what is wrong or missing.
    """
    import pyarrow as pa

    if name in features.lists:
        separator = features.lists[name].separator
        lists = cells_of(rows, name, damage, lambda x, name: texts_of_list(x, name, separator))
        return pa.array([each or [] for each in lists], pa.list_(pa.string()))
    is_id = name in features.identifiers
    texts = cells_of(rows, name, damage, lambda x, name: text_of_value(x, name, is_id=is_id))
    return pa.array(texts, pa.string())


def cells_of(
    rows: Sequence[Mapping[str, Json]],
    name: str,
    damage: Damage,
    convert: Callable[[Json, str], Cell],
) -> list[Cell | None]:
    """Return one column of all rows, converted; None where it is missing or wrong."""
    cells: list[Cell | None] = [None] * len(rows)
    for i, row in enumerate(rows):
        try:
            cells[i] = convert(row[name], name)
        except KeyError:
            damage.reasons.setdefault(i, f"no {name!r}; give null for a missing value")
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


def text_of_value(value: Json, name: str, *, is_id: bool) -> str | None:
    """The text that a log would have; None for a missing value.

    Args:
        value: None, text, a boolean or a number; for a time a date, too.
        name: of its column, for messages.
        is_id: whether it becomes an id: then no fractional number, whose text is not unique.

    Raises:
        ValueError: it is anything else.

    >>> text_of_value(7, "user", is_id=True), text_of_value(0.5, "age", is_id=False)
    ('7', '0.5')
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
