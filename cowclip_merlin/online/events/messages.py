"""Events as messages: one JSON object each, column -> value, as a request has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cowclip_merlin.online.events.events import Damage, Events, encode_log
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.ids import text_id
from cowclip_merlin.online.events.requests import cells_of, column_of
from cowclip_merlin.online.events.sample_rates import SAMPLE_RATE, sample_rate_offsets
from cowclip_merlin.online.events.times import format_time
from cowclip_merlin.types import Json
from cowclip_merlin.workflows.raw.values import labels

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LATE = "cowclip_late"
"""Column that is 1 in positives whose click came after the window of their impression."""

OLD_NAMES = {SAMPLE_RATE: "sample_rate", LATE: "late"}
"""What the two columns of a join were called before they had a prefix."""

AHEAD = 86_400
"""Seconds by which an event may be ahead of this machine's clock.

The newest event says what is old. One from far ahead would end all windows and expire all rows.
"""

Row = Mapping[str, Json]


def decode_messages(values: Sequence[bytes], damage: Damage) -> list[Row]:
    """Read messages; one that is no JSON object is damaged, and an empty mapping.

    Args:
        values: the messages.
        damage: takes what is wrong, by position.

    >>> damage = Damage()
    >>> decode_messages([b'{"user": 7}', b"[7]"], damage)
    [{'user': 7}, {}]
    >>> damage.reasons
    {1: 'a list, not a JSON object of columns'}
    """
    rows: list[Row] = []
    for i, value in enumerate(values):
        row: Json = {}
        try:
            row = json.loads(value)
            if type(row) is not dict:
                damage.reasons[i] = f"a {type(row).__name__}, not a JSON object of columns"
                row = {}
        except (ValueError, RecursionError) as error:
            damage.reasons[i] = f"no JSON ({error!s:.80})"
        rows.append(row)
    return rows


def encode_messages(
    values: Sequence[bytes],
    features: LogFeatures,
    on_old_name: Callable[[str], None] = lambda _: None,
) -> tuple[Events, Damage]:
    """Ids, numbers, labels and times of messages, equal to those of the same values in a log.

    Their `SAMPLE_RATE` becomes offsets. A positive with `LATE` 1 gets a key of its own, since the
    earlier negative of the same request must not make it a repeat. `OLD_NAMES` count in messages
    without `SAMPLE_RATE`, unless the features name such a column.

    Args:
        values: messages with all inputs, the label, the time, and key and weight if there are such.
        features: the columns.
        on_old_name: is called with an old name whose values count.

    Returns:
        The events of all messages, those of damaged ones without meaning, and what is wrong.
    """
    import pyarrow as pa

    damage = Damage()
    rows = decode_messages(values, damage)
    columns = dict.fromkeys([*features.inputs, *features.beside])
    table = {name: column_of(rows, name, features, damage) for name in columns}
    given = cells_of(rows, features.label, damage, _label)
    table[features.label] = pa.array([label or 0 for label in given], pa.int8())
    events = encode_log(pa.table(table), features, damage)
    rates, late = (_joined(rows, name, features, on_old_name) for name in (SAMPLE_RATE, LATE))
    if events.keys is not None:
        _mark_late(events, late)
    return replace(events, offsets=sample_rate_offsets(rates, damage)), damage


def _joined(
    rows: Sequence[Row], name: str, features: LogFeatures, on_old_name: Callable[[str], None]
) -> list[Json]:
    """One of the columns that a join adds, of all messages; None where it is missing."""
    values, old = [row.get(name) for row in rows], OLD_NAMES[name]
    if old in features.names:
        return values
    for i, row in enumerate(rows):
        if old in row and SAMPLE_RATE not in row:
            values[i] = row[old]
            on_old_name(old)
    return values


def refuse_ahead(
    times: npt.NDArray[np.int64], now: float, features: LogFeatures, damage: Damage
) -> None:
    """Refuse times that are more than `AHEAD` ahead of the clock.

    Args:
        times: of events, int64 [n].
        now: seconds since 1970.
        features: name of the time column.
        damage: takes what is wrong.
    """

    def reason(i: int) -> str:
        given = format_time(int(times[i]))
        return f"{features.time} is {given}, in the future; check clocks and time zones"

    damage.add(times > now + AHEAD, reason)


def _mark_late(events: Events, late: Sequence[Json]) -> None:
    """Give late positives other keys than the examples of the same requests."""
    for i, value in enumerate(late):
        if value == 1 and events.labels[i] == 1:
            events.keys[i] = text_id(f"late {events.keys[i]}")  # snapshots have these keys


def _label(value: Json, name: str) -> int:
    """0 or 1.

    Raises:
        ValueError: it is anything else.
    """
    label = labels.label_of(value)
    if label is None:
        raise ValueError(labels.damage_of(name, value))
    return label
