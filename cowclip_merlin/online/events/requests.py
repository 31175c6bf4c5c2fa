"""Requests: events as mappings, as JSON has them."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from cowclip_merlin.online.events.events import Damage, Events, encode_inputs
from cowclip_merlin.online.events.features import LogFeatures


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
    requests: Sequence[Mapping[str, Any]], features: LogFeatures
) -> EncodedRequests:
    """Ids and numbers of requests, equal to those of the same values in a log.

    Args:
        requests: column -> value, with all `features.inputs`; None or "" is a missing value.
        features: the columns; label, time and key are not needed.
    """
    import pyarrow as pa

    damage = Damage()
    columns = {name: _column(requests, name, features, damage) for name in features.inputs}
    events = encode_inputs(pa.table(columns), features, damage)
    return EncodedRequests(events.filter(damage.good(len(requests))), damage.reasons)


def _column(
    requests: Sequence[Mapping[str, Any]], name: str, features: LogFeatures, damage: Damage
) -> Any:
    """One column of all requests as Arrow text."""
    import pyarrow as pa

    is_id = name in features.identifiers
    cells = [_cell(row, name, i, damage, is_id=is_id) for i, row in enumerate(requests)]
    return pa.array(cells, pa.string())


def _cell(
    request: Mapping[str, Any], name: str, position: int, damage: Damage, *, is_id: bool
) -> str | None:
    try:
        if name not in request:
            raise ValueError(f"no {name!r}; give null for a missing value")
        return text_of_value(request[name], name, is_id=is_id)
    except ValueError as error:
        damage.reasons.setdefault(position, str(error))
        return None


def text_of_value(value: Any, name: str, *, is_id: bool) -> str | None:
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
