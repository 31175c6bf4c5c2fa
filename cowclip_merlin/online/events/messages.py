"""Events as messages and requests: one JSON object each, column -> value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.online.events.columns import Row, StreamColumn
from cowclip_merlin.online.events.events import (
    Damage,
    Events,
    encode_inputs,
    encode_log,
    sample_rate_offsets,
)
from cowclip_merlin.online.events.features import LATE, SAMPLE_RATE, LogFeatures
from cowclip_merlin.online.events.values import format_time, text_id
from cowclip_merlin.types import ArrowColumn, Json
from cowclip_merlin.workflows.raw.values.numbers import (
    label_damage,
    label_of,
    numbers_of_texts,
    parse_labels,
    rows_with_labels,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

AHEAD = 86_400
"""Seconds by which an event may be ahead of this machine's clock.

The newest event says what is old. One from far ahead would end all windows and expire all rows.
"""


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


def _scanned(value: bytes) -> Json:
    """Return what `json.loads` does, without its checks for other encodings and blanks."""
    text = value.decode()
    found, end = _SCAN(text, 0)
    if end < len(text):
        raise ValueError
    return found


try:  # it comes with FastAPI, and takes a third of the time
    from pydantic_core import from_json as _quickly
except ImportError:
    _quickly = _scanned


def _json_of(value: bytes) -> Json:
    """As `json.loads`, which decides about what the quick way refuses."""
    try:
        return _quickly(value)
    except (ValueError, StopIteration):
        return json.loads(value)


def read_column(rows: Sequence[Row], name: str, features: LogFeatures, damage: Damage) -> pa.Array:
    """Return an input, the time, the key or the weight of all rows, as `StreamColumn.of_rows`."""
    # A format of times reads texts only.
    as_text = name == features.time and features.time_format is not None
    return features.column(name).of_rows(rows, damage, as_text=as_text)


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
    columns = {c.name: c.of_rows(requests, damage) for c in features.columns_of_model}
    events = encode_inputs(pa.table(columns), features, damage)
    return EncodedRequests(events.filter(damage.good(len(requests))), damage.reasons)


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
    table = {name: read_column(rows, name, features, damage) for name in columns}
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
            column = StreamColumn(name=features.label)
            cells = column.cells(rows, damage, lambda value: _label(value, column.name))
            given = [label or 0 for label in cells]
        return {features.label: pa.array(given, pa.int8())}
    targets = features.targets
    columns = [StreamColumn(name=name) for name in features.labels]
    texts = {each.name: each.of_rows(rows, damage, as_text=True) for each in columns}
    parsed = {name: _parsed(texts[name], regression) for name, regression in targets}
    good = rows_with_labels(targets, pa.table(texts), parsed)

    def reason(i: int) -> str:
        row = {name: text[i].as_py() for name, text in texts.items()}
        return damage_of([Label(*target, optional=True) for target in targets], row)

    damage.add(~np.asarray(good), reason)
    return {name: pc.if_else(good, column, None) for name, column in parsed.items()}


def _parsed(text: ArrowColumn, regression: bool) -> ArrowColumn:
    """Return numbers of labels given as text, as of a log of files; null where one is wrong."""
    return numbers_of_texts(text) if regression else parse_labels(text)


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
    label = label_of(value)
    if label is None:
        raise ValueError(label_damage(name, value))
    return label
