"""Events as messages: one JSON object each, column -> value, as a request has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.online.events.events import Damage, Events, encode_log
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.ids import text_id
from cowclip_merlin.online.events.requests import cells_of, column_of, texts_of
from cowclip_merlin.online.events.sample_rates import SAMPLE_RATE, sample_rate_offsets
from cowclip_merlin.online.events.times import format_time
from cowclip_merlin.types import ArrowColumn, Json
from cowclip_merlin.workflows.raw.values import labels
from cowclip_merlin.workflows.raw.values.text_to_number import numbers_of_texts

if TYPE_CHECKING:
    import numpy.typing as npt

LATE = "cowclip_late"
"""Column that is 1 in positives whose click came after the window of their impression."""

AHEAD = 86_400
"""Seconds by which an event may be ahead of this machine's clock.

The newest event says what is old. One from far ahead would end all windows and expire all rows.
"""

Row = Mapping[str, Json]


def decode_messages(values: Sequence[bytes], damage: Damage) -> list[dict[str, Json]]:
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
    rows: list[dict[str, Json]] = []
    for i, value in enumerate(values):
        row: Json = {}
        try:
            row = _json_of(value)
            if type(row) is not dict:
                damage.reasons[i] = f"a {type(row).__name__}, not a JSON object of columns"
                row = {}
        except (ValueError, RecursionError) as error:
            damage.reasons[i] = f"no JSON ({error!s:.80})"
        rows.append(row)
    return rows


_SCAN = json.JSONDecoder().scan_once


def _json_of(value: bytes) -> Json:
    """As `json.loads`, whose checks for other encodings and blanks take a third of its time."""
    try:
        text = value.decode()
        found, end = _SCAN(text, 0)
        if end == len(text):
            return found
    except (ValueError, StopIteration):
        pass
    return json.loads(value)


def encode_messages(values: Sequence[bytes], features: LogFeatures) -> tuple[Events, Damage]:
    """Ids, numbers, labels and times of messages, equal to those of the same values in a log.

    Their `SAMPLE_RATE` becomes offsets. A positive with `LATE` 1 gets a key of its own, since the
    earlier negative of the same request must not make it a repeat.

    Args:
        values: messages with all inputs that are not `optional`, labels and the time, and key and
            weight if there are such.
        features: the columns.

    Returns:
        The events of all messages, those of damaged ones without meaning, and what is wrong.
    """
    import pyarrow as pa

    damage = Damage()
    rows = damage.rows = decode_messages(values, damage)
    columns = dict.fromkeys([*features.inputs, *features.beside])
    for i in damage.reasons:  # so that their columns need no look at each value then
        rows[i] = dict.fromkeys([*columns, *features.labels])
    table = {name: column_of(rows, name, features, damage) for name in columns}
    table |= _labels(rows, features, damage)
    events = encode_log(pa.table(table), features, damage)
    if events.keys is not None:
        _mark_late(events, [row.get(LATE) for row in rows])
    rates = [row.get(SAMPLE_RATE) for row in rows]
    if features.more_labels:
        _refuse_sampled(rates, damage)
        return events, damage
    return replace(events, offsets=sample_rate_offsets(rates, damage)), damage


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
    first = events.labels.reshape(len(events), -1)[:, 0]
    for i, value in enumerate(late):
        if value == 1 and first[i] == 1:
            events.keys[i] = text_id(f"late {events.keys[i]}")  # snapshots have these keys


def _labels(rows: Sequence[Row], features: LogFeatures, damage: Damage) -> dict[str, ArrowColumn]:
    """Return the columns of labels: 0 and 1, or of several targets numbers and nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from cowclip_merlin.workflows.raw.columns import Label
    from cowclip_merlin.workflows.raw.parsed_rows import damage_of

    if not features.more_labels:
        given = [row.get(features.label) for row in rows]
        if {*map(type, given)} != {int} or not {*given} <= {0, 1}:
            given = [label or 0 for label in cells_of(rows, features.label, damage, _label)]
        return {features.label: pa.array(given, pa.int8())}
    targets = features.targets
    texts = {name: texts_of(rows, name, damage, is_id=False) for name in features.labels}
    parsed = {name: _parsed(texts[name], regression) for name, regression in targets}
    good = labels.rows_with_labels(targets, pa.table(texts), parsed)

    def reason(i: int) -> str:
        row = {name: text[i].as_py() for name, text in texts.items()}
        return damage_of([Label(*target, optional=True) for target in targets], row)

    damage.add(~np.asarray(good), reason)
    return {name: pc.if_else(good, column, None) for name, column in parsed.items()}


def _parsed(text: ArrowColumn, regression: bool) -> ArrowColumn:
    """Return numbers of labels given as text, as of a log of files; null where one is wrong."""
    return numbers_of_texts(text) if regression else labels.parse_labels(text)


def _refuse_sampled(rates: Sequence[Json], damage: Damage) -> None:
    """Refuse sampled negatives, which are those of one label."""
    sampled = np.array([rate is not None and rate != 1 for rate in rates], bool)
    damage.add(
        sampled,
        lambda i: f"{SAMPLE_RATE} is {rates[i]!r:.60}, but there are several labels; give a weight",
    )


def _label(value: Json, name: str) -> int:
    """0 or 1.

    Raises:
        ValueError: it is anything else.
    """
    label = labels.label_of(value)
    if label is None:
        raise ValueError(labels.damage_of(name, value))
    return label
