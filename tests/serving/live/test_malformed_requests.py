"""Each wrong request has one clear answer, and none stops the server.

    FUZZ_EXAMPLES=30000 python -m pytest tests/serving/live/test_malformed_requests.py

`FUZZ_EXAMPLES` is how many random bodies to try in each test: 150 without it.
"""

import json
import os

import numpy as np
import pytest
from http_clients import URL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowclip_merlin.online.events.messages import encode_messages


def body_of(row, **more):
    return json.dumps({"events": [{**row, **more}]}).encode()


JSON = {"content-type": "application/json"}
MALFORMED = {
    # body, headers, status, part of the error
    "empty body": (b"", JSON, 400, "the body is empty"),
    "no JSON": (b"hello", JSON, 400, "not JSON: Expecting value"),
    "half a body": (b'{"events": [{"user"', JSON, 400, "not JSON"),
    "two bodies": (b"{}{}", JSON, 400, "Extra data"),
    "NaN": (b'{"events": [{"price": NaN}]}', JSON, 400, "NaN is not a JSON"),
    "-Infinity": (b'{"events": [{"price": -Infinity}]}', JSON, 400, "-Infinity is not"),
    "bytes that are not UTF-8": (b'{"events": "\xff"}', JSON, 400, "not UTF-8 at byte 12"),
    "UTF-16": ('{"events": []}'.encode("utf-16"), JSON, 400, "not UTF-8"),
    "a byte order mark": (b"\xef\xbb\xbf{}", JSON, 400, "not JSON"),
    "a zero byte": (b'{"events": "\x00"}', JSON, 400, "not JSON"),
    "deep lists": (b"[" * 3000, JSON, 400, "nested too deeply"),
    "deep objects": (b'{"a":' * 600 + b"1" + b"}" * 600, JSON, (400, 422), ""),
    "a number with 3900 digits": (b'{"events": ' + b"1" * 3900 + b"}", JSON, 422, "events is a n"),
    "a list": (b"[]", JSON, 422, 'no "events"'),
    "no events": (b"{}", JSON, 422, 'no "events"'),
    "events is null": (b'{"events": null}', JSON, 422, "events is null; "),
    "events is an object": (b'{"events": {}}', JSON, 422, "events is an object"),
    "events is true": (b'{"events": true}', JSON, 422, "events is true or false"),
    "no event": (b'{"events": []}', JSON, 422, "events is empty"),
    "an event is null": (b'{"events": [null]}', JSON, 422, "event 0 is null; "),
    "an event is a list": (b'{"events": [[1]]}', JSON, 422, "event 0 is a list"),
    "an empty event": (b'{"events": [{}]}', JSON, 422, "event 0: no 'user'; "),
    "9 events": (b'{"events": [' + b"{}," * 8 + b"{}]}", JSON, 413, "9 events in one request"),
    "a large body": (b'{"events": "' + b"x" * 4000, JSON, 413, "larger than 4000 bytes"),
    "no content type": (b"{}", {}, 415, "Content-Type is 'none'"),
    "text": (b"{}", {"content-type": "text/plain"}, 415, "send application/json"),
    "a form": (b"a=1", {"content-type": "application/x-www-form-urlencoded"}, 415, "send app"),
    "another charset": (b"{}", {"content-type": "application/json; charset=latin-1"}, 415, "UTF-8"),
    "a compressed body": (b"{}", JSON | {"content-encoding": "gzip"}, 415, "the body as it"),
    "a wrong length": (b"{}", JSON | {"content-length": "two"}, 400, "Content-Length 'two'"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_request_gets_one_clear_line(client, what):
    body, headers, status, text = MALFORMED[what]
    answer = client.post(URL, content=body, headers=headers)
    assert answer.status_code in (status if isinstance(status, tuple) else (status,))
    content = answer.json()
    assert set(content) <= {"error", "events"}
    assert text in content["error"] and "\n" not in content["error"]
    assert len(content["error"]) < 200


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("user", 1.5, "user is 1.5 (float); "),
        ("item", "\ud800", "which UTF-8 cannot express"),
        ("price", 1e999, "price is 'inf', not a finite"),
    ],
    ids=["user", "item", "price"],
)
def test_a_wrong_value_is_named_with_event_and_column(client, rows, column, value, reason):
    bad = {**rows[1], column: value}
    text = json.dumps({"events": [rows[0], bad, rows[2]]}).replace("Infinity", "1e999")
    answer = client.post(URL, content=text.encode(), headers=JSON)
    assert answer.status_code == 422
    assert f"event 1: {column}" in answer.json()["error"]
    assert reason in answer.json()["error"]
    (found,) = answer.json()["events"]
    assert found["event"] == 1 and reason in found["reason"]


def test_all_damaged_events_are_listed(client, rows):
    damaged = [{**row, "price": "x"} for row in rows[:4]] + [rows[4]]
    answer = client.post(URL, json={"events": damaged})
    assert answer.status_code == 422 and "3 more events are damaged" in answer.json()["error"]
    assert [each["event"] for each in answer.json()["events"]] == [0, 1, 2, 3]


def test_missing_values_and_other_columns_are_fine(client, rows):
    row = dict.fromkeys(rows[0])
    answer = client.post(URL, json={"events": [row, {**row, "more": [1]}], "other": 1})
    assert answer.status_code == 200
    assert len(set(answer.json()["predictions"])) == 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


FUZZED = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "150")),
    suppress_health_check=list(HealthCheck),
)
EVENT = st.dictionaries(st.sampled_from(["user", "item", "price", "hour"]), VALUES)


@FUZZED
@given(VALUES, EVENT)
def test_no_json_stops_the_server(client, rows, anything, values):
    for content in (anything, {"events": anything}, {"events": [{**rows[0], **values}]}):
        answer = client.post(URL, content=json.dumps(content).encode(), headers=JSON)
        assert answer.status_code in (200, 400, 413, 422)
        assert set(answer.json()) <= {"error", "events", "predictions", "model"}


@FUZZED
@given(st.binary(max_size=200))
def test_no_bytes_stop_the_server(client, body):
    assert client.post(URL, content=body, headers=JSON).status_code in (400, 422)


@FUZZED
@given(EVENT)
def test_any_values_are_scored_or_refused_as_in_training(served, client, rows, values):
    """A server and a trainer read the same event the same way."""
    made, _ = served
    features = made.trainer.features
    row = {**rows[0], **values}
    answer = client.post(URL, content=json.dumps({"events": [row]}).encode(), headers=JSON)
    message = {**row, features.label: 1, features.time: 1_700_000_000}
    events, damage = encode_messages([json.dumps(message).encode()], features)
    assert (answer.status_code == 200) == (not damage.reasons)
    if answer.status_code == 200:
        wanted = made.trainer.predict(events)
        assert np.abs(np.array(answer.json()["predictions"]) - wanted).max() <= 1e-6


def test_a_body_in_parts_has_the_same_limit(client, rows):
    def parts(size):
        yield body_of(rows[0])[:-2]
        yield b" " * size
        yield b"]}"

    headers = JSON | {"transfer-encoding": "chunked"}
    assert client.post(URL, content=parts(100), headers=headers).status_code == 200
    assert client.post(URL, content=parts(5000), headers=headers).status_code == 413
