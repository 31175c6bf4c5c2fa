"""Any bytes in a log of messages: one reason each, and no other message is read otherwise.

    FUZZ_EXAMPLES=30000 python -m pytest tests/online/events/test_malformed_messages.py

`FUZZ_EXAMPLES` is how many batches of random messages to try: 100 without it.
"""

import json
import os
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cowclip_merlin.online.events import messages as ways
from cowclip_merlin.online.events.columns import StreamColumn, VectorColumn
from cowclip_merlin.online.events.events import Damage
from cowclip_merlin.online.events.messages import (
    decode_messages,
    encode_messages,
    encode_requests,
    refuse_ahead,
)

FEATURES = """\
label: click
time: time
key: request
weight: weight
categorical:
- user
- {name: item, ttl: 5d}
- {name: tags, separator: "|"}
continuous:
- price
vectors:
- {name: text, length: 2}
"""
COLUMNS = ["user", "item", "tags", "price", "click", "time", "request", "weight"]
COLUMNS += ["buy", "sec", "text"]
ADDED = ["cowclip_sample_rate", "cowclip_late", "other"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["1", "1.5", "", "nan", "inf", "2026-01-01 10:00", "0x1f", "\x00", 0, 1])
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=3), SCALARS)
GOOD = st.fixed_dictionaries(
    {
        "user": st.integers(0, 5),
        "item": st.sampled_from(["a", "b", None]),
        "tags": st.lists(st.sampled_from("xyz"), max_size=3),
        "price": st.floats(0, 9),
        "click": st.sampled_from([0, 1]),
        "time": st.integers(1_700_000_000, 1_700_000_100),
        "request": st.integers(0, 99),
        "weight": st.floats(0, 3),
        "buy": st.sampled_from([0, 1, None]),
        "sec": st.floats(-9, 9) | st.none(),
        "text": st.lists(st.floats(-9, 9), min_size=2, max_size=2),
    }
)
ROW = {"user": 1, "item": "a", "tags": [], "price": 1.5, "click": 1, "time": 1_700_000_000}
ROW |= {"request": 1, "weight": 1.0, "buy": 1, "sec": 0.5, "text": [1.0, 2.0]}
MISSING = -1e9  # in place of NaN, which is not equal to itself
CHANGES = st.dictionaries(st.sampled_from(COLUMNS + ADDED), VALUES, max_size=3)
WHOLE = st.builds(lambda row, more: json.dumps({**row, **more}).encode(), GOOD, CHANGES)
CUT = st.builds(lambda text, at: text[: at % (len(text) + 1)], WHOLE, st.integers(0, 400))
MESSAGES = WHOLE | CUT | st.binary(max_size=60) | VALUES.map(lambda x: json.dumps(x).encode())


@pytest.fixture(params=["one label", "several labels"])
def features(features_file, request):
    several = "label: [click, buy, sec]\nregression: sec"
    one = request.param == "one label"
    return features_file(FEATURES if one else FEATURES.replace("label: click", several))


def contents(events, i):
    """All that training reads of an event."""
    ids = events.ids.take(slice(i, i + 1))
    offset = 0.0 if events.offsets is None else float(events.offsets[i])
    columns = (events.numbers, events.labels, events.times, events.keys, events.weights)
    cells = [np.nan_to_num(np.asarray(column[i]), nan=MISSING).tolist() for column in columns]
    return ids.values.tolist(), *cells, offset


INTEGERS = (
    st.integers(-(2**70), 2**70) | st.integers(-9, 9) | st.sampled_from([-(2**63), 2**53 + 1])
)
KINDS = [INTEGERS, st.floats(), INTEGERS | st.floats(), st.text(max_size=9), st.integers(0, 2**31)]
KINDS += [st.lists(kind | st.none(), max_size=3) for kind in KINDS]
KINDS += [st.lists(kind, min_size=2, max_size=2) for kind in KINDS[:4]]
OF_ONE_KIND = st.sampled_from(KINDS).flatmap(lambda kind: st.lists(kind | st.none(), min_size=4))
COLUMNS_OF_ONE_KIND = st.dictionaries(st.sampled_from(COLUMNS + ADDED), OF_ONE_KIND)


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(rows=st.lists(GOOD, min_size=4, max_size=4), columns=COLUMNS_OF_ONE_KIND)
@example(rows=[ROW] * 4, columns={"user": [-(2**63), 1 - 2**63, 2**63 - 1, None]})
@example(rows=[ROW] * 4, columns={"item": ["", "a", "7.0", None], "request": ["", "b", "c", "d"]})
@example(rows=[ROW] * 4, columns={"time": [float("inf"), float("nan"), 9.5, -1]})
@example(rows=[ROW] * 4, columns={"tags": [[7, 8], None, [], [2**63 - 1]]})
@example(rows=[ROW] * 4, columns={"tags": [["a", "7.0"], None, [], ["7"]]})
@example(rows=[ROW] * 4, columns={"tags": ["a|b", "", None, "7.0|a||"]})
@example(rows=[ROW] * 4, columns={"text": [[2**63, 1], [0.1, 1e30], [-0.0, 3.5], [2**53 + 1, 0]]})
@example(rows=[ROW] * 4, columns={"text": [[1, 2], [0.1, 1e39], [1], [10**400, 1]]})
@example(rows=[ROW] * 4, columns={"price": [2**53 + 1, 1e300, 0, None], "weight": [-1, 1, 2.0, 0]})
def test_a_column_of_one_type_is_read_as_its_texts(features, rows, columns):
    for name, values in columns.items():
        rows = [row | {name: value} for row, value in zip(rows, values)]
    messages = [json.dumps(row).encode() for row in rows]
    events, damage = encode_messages(messages, features)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamColumn, "_of_one_type", lambda *_: None)
        patch.setattr(VectorColumn, "_of_numbers", lambda *_: None)
        texts, wrong = encode_messages(messages, features)
    assert damage.reasons == wrong.reasons
    for i in set(range(4)) - set(damage.reasons):
        assert contents(events, i) == contents(texts, i)


@settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "100")),
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=6))
def test_a_message_is_read_as_if_it_were_alone(features, messages):
    events, damage = encode_messages(messages, features)
    refuse_ahead(events.times, 1.7e9, features, damage)
    assert len(events) == len(messages) and set(damage.reasons) <= set(range(len(messages)))
    for i, message in enumerate(messages):
        alone, wrong = encode_messages([message], features)
        refuse_ahead(alone.times, 1.7e9, features, wrong)
        assert damage.reasons.get(i) == wrong.reasons.get(0)
        if i in damage.reasons:
            assert damage.reasons[i].strip() and len(damage.reasons[i]) < 250
            continue
        assert contents(events, i) == contents(alone, 0)
        assert_as_written(contents(events, i), json.loads(message))


def assert_as_written(found, row):
    """Of an undamaged event, what can be told from its message without our code."""
    _, numbers, label, time, _, weight, offset = found
    assert np.isfinite([*numbers, time, weight, offset]).all() and weight >= 0
    assert 0 <= time <= 1.7e9 + 86_400
    if isinstance(row["text"], list):
        assert numbers[1:] == [np.float32(float(x)) for x in row["text"]]
    given = [row["click"], row["buy"], row["sec"]]
    for mine, value in zip(label if isinstance(label, list) else [label], given):
        words = {"": MISSING, "yes": 1, "true": 1, "no": 0, "false": 0}
        value = MISSING if value is None else words.get(str(value).lower(), value)
        assert mine == np.float32(value)
    if isinstance(row["weight"], float):
        assert weight == np.float32(row["weight"])
    rate = row.get("cowclip_sample_rate")
    assert offset == np.float32(np.log(1 if rate is None else rate))


def test_a_message_and_a_request_may_lack_an_optional_column(features_file):
    """It has no value there; a value that is given must be right."""
    needed = features_file(FEATURES)
    text = FEATURES.replace('tags, separator: "|"', 'tags, separator: "|", optional: true')
    text = text.replace("ttl: 5d", "ttl: 5d, optional: true")
    text = text.replace("- price", "- {name: price, optional: true}")
    features = features_file(text)
    row = {"user": 7, "click": 1, "time": 1_700_000_000, "request": 1, "weight": 1, "text": [1, 2]}
    rows = [row, row | {"item": "a", "price": 2, "tags": "x|y"}, row | {"item": 1.5}]
    rows += [{**row, "user": None}, {k: x for k, x in row.items() if k != "user"}]
    values = [json.dumps(x).encode() for x in rows]
    events, damage = encode_messages(values, features)
    assert "item is 1.5" in damage.reasons[2]
    assert damage.reasons[4] == "no 'user'; give null for a missing value"
    assert set(damage.reasons) == {2, 4}
    null = {"item": None, "tags": [], "price": ""}
    whole, _ = encode_messages([json.dumps(row | null).encode(), values[1]], needed)
    asked = encode_requests(rows[:2], features).events
    for i in range(2):
        assert contents(events, i) == contents(whole, i)
        assert asked.ids.take([i]).values.tolist() == whole.ids.take([i]).values.tolist()
    np.testing.assert_array_equal(asked.numbers, whole.numbers)


@pytest.mark.parametrize("way", [ways._quickly, ways._scanned])
@given(st.dictionaries(st.text(max_size=3), VALUES), st.integers(0), st.integers(0, 255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_message_is_what_json_loads_makes_of_it(monkeypatch, way, row, place, byte):
    """Also after one of its bytes has changed."""
    monkeypatch.setattr(ways, "_quickly", way)
    text = json.dumps(row).encode()
    place %= len(text)
    for value in (text, text[:place] + bytes([byte]) + text[place + 1 :]):
        damage, wanted = Damage(), None
        (found,) = decode_messages([value], damage)
        with suppress(ValueError):
            wanted = json.loads(value)
        is_good = type(wanted) is dict
        assert repr(found) == repr(wanted if is_good else {})
        assert bool(damage.reasons) != is_good
