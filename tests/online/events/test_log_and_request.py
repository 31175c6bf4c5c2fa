"""The same row has equal ids and numbers, whether a log, a message or a request gives it."""

import csv
import gzip
import io
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import EventLog, encode_requests
from cowclip_merlin.online.events.columns import CategoricalColumn, ContinuousColumn
from cowclip_merlin.online.events.event_log import RawLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.values import MISSING, text_id
from cowclip_merlin.online.producing.producer import Producer, ProduceSettings

LINE_BREAKS = "\r\n"  # a text file cannot hold them in a value
ANY = st.characters(exclude_categories=["Cs"])
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=LINE_BREAKS))
IDS = (
    st.none()
    | TEXT
    | st.integers(-(2**66), 2**66)
    | st.sampled_from(["1.0", "-0.00", "1", "01", "-0", " 1", "é", "e\u0301", "", "null", "NaN"])
    | st.sampled_from(["None", '"', 'say "hi"', "\\", "\0"])
)
NUMBERS = (
    st.none()
    | st.integers(-(2**66), 2**66)
    | st.floats(width=64)
    | st.floats().map(repr)
    | st.sampled_from(["1.0", " 2", "1e3", "-.5", "two", "1,5", "0x10", "1_0", "-", " ", ""])
)
ROWS = st.lists(st.tuples(IDS, IDS, NUMBERS, NUMBERS), min_size=1, max_size=8)
quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def as_text(value):
    return "" if value is None else str(value)


def written(rows, separator):
    """A text file of the rows; each one's time is its position."""
    text = io.StringIO()
    text.write(separator.join(["click", "time", "request", "user", "item", "price", "age"]) + "\n")
    if separator == ",":
        writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerows([1, i, i, *map(as_text, row)] for i, row in enumerate(rows))
    else:
        for i, row in enumerate(rows):
            text.write("\t".join(map(as_text, [1, i, i, *row])) + "\n")
    return text.getvalue().encode()


def requests_of(rows):
    return [dict(zip(["user", "item", "price", "age"], row, strict=True)) for row in rows]


def whole_log(file, features):
    """All events of a log, and the positions of its damaged rows."""
    log = EventLog([file], features, max_bad_fraction=1, block_bytes=64)
    try:
        pieces = list(log)
    except Exception as error:
        assert "no events" in str(error)
        pieces = []
    first = 1 if file.suffix == ".parquet" else 2  # a header is line 1
    ids = np.concatenate([p.ids.values for p in pieces]) if pieces else np.empty((0, 2), np.int64)
    numbers = [p.numbers for p in pieces] or [np.empty((0, 2), np.float32)]
    bad = {line.line - first for line in log.damaged.first}
    assert len(ids) + log.damaged.count == log.rows
    return ids, np.concatenate(numbers), bad


def assert_equal(rows, file, features):
    ids, numbers, bad = whole_log(file, features)
    request = encode_requests(requests_of(rows), features)
    assert set(request.damaged) == bad
    np.testing.assert_array_equal(request.events.ids.values, ids)
    np.testing.assert_array_equal(request.events.numbers, numbers)


def assert_sent_alike(file, features):
    """A reader of the messages that a producer makes of a file reads what the log reads."""
    values = []
    log = SimpleNamespace(name="list", append=lambda new: values.extend(new) or (len(values),))
    events = RawLog([file], features, max_bad_fraction=1, block_bytes=64)
    Producer(features, ProduceSettings(), examples=log).run(events)
    objects = list(map(json.loads, values))
    sent = encode_requests(objects, features)
    whole = [row for i, row in enumerate(objects) if i not in sent.damaged]
    ids, numbers, _ = whole_log(file, features)
    np.testing.assert_array_equal(sent.events.ids.values, ids)
    np.testing.assert_array_equal(sent.events.numbers, numbers)
    assert {int(row["click"]) for row in whole} <= {1}
    assert [row["request"] for row in whole] == [row["time"] for row in whole]


@quick
@given(rows=ROWS)
def test_comma_separated_text(rows, features_file, tmp_path):
    file = tmp_path / "log.csv"
    file.write_bytes(written(rows, ","))
    assert_equal(rows, file, features_file())
    assert_sent_alike(file, features_file())


@quick
@given(rows=ROWS)
def test_tab_separated_compressed_text(rows, features_file, tmp_path):
    rows = [tuple(x.replace("\t", "") if isinstance(x, str) else x for x in row) for row in rows]
    file = tmp_path / "log.tsv.gz"
    file.write_bytes(gzip.compress(written(rows, "\t")))
    assert_equal(rows, file, features_file())


INTS = st.none() | st.integers(-(2**63), 2**63 - 1)
FLOATS = st.none() | st.floats(width=64)
STRINGS = st.none() | st.text(ANY)
PARQUET_ROWS = st.lists(st.tuples(INTS, STRINGS, FLOATS, INTS), min_size=1, max_size=8)


@quick
@given(rows=PARQUET_ROWS)
def test_parquet(rows, features_file, tmp_path):
    """Columns of a type each; text may hold line breaks."""
    kinds = (pa.int64(), pa.large_string(), pa.float64(), pa.int64())
    columns = [
        pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)
    ]
    n = pa.array(range(len(rows)))
    table = pa.table(
        [pa.array([True] * len(rows)), n, n, *columns],
        names=["click", "time", "request", "user", "item", "price", "age"],
    )
    pq.write_table(table, tmp_path / "log.parquet")
    assert_equal(rows, tmp_path / "log.parquet", features_file())


@quick
@given(rows=ROWS, cut=st.integers(0, 8))
def test_a_request_does_not_depend_on_those_beside_it(rows, cut, features_file):
    features, requests = features_file(), requests_of(rows)
    whole = encode_requests(requests, features)
    parts = [encode_requests(part, features) for part in (requests[:cut], requests[cut:]) if part]
    joined = Events.concatenate([part.events for part in parts])
    np.testing.assert_array_equal(whole.events.ids.values, joined.ids.values)
    np.testing.assert_array_equal(whole.events.numbers, joined.numbers)
    assert len(whole.damaged) == sum(len(part.damaged) for part in parts)


def test_values_of_a_request(features_file):
    given = {"user": 7, "item": "a", "price": -1.5, "age": "25", "other": object()}
    absent = {"user": "", "item": None, "price": None, "age": ""}
    done = encode_requests([given, absent], features_file())
    assert not done.damaged and done.events.labels is None and done.events.times is None
    assert done.events.ids.values.tolist() == [[7, text_id("a")], [MISSING, MISSING]]
    wanted = np.float32([[-np.log(2.5), 0.25], [0, 0]])
    np.testing.assert_array_equal(done.events.numbers, wanted)


def test_no_requests(features_file):
    done = encode_requests([], features_file())
    assert done.events.ids.values.shape == (0, 2) and done.events.numbers.shape == (0, 2)


def message(**more):
    row = {"user": 1, "item": 2, "price": 0.5, "time": 1000, "key": "k"}
    return json.dumps(row | {"click": 1, "buy": 0, "sec": 2.5} | more).encode()


LABELS = LogFeatures(
    label="click",
    more_labels=("buy", "sec"),
    regression=("sec",),
    time="time",
    key="key",
    categorical=(CategoricalColumn(name="user"), CategoricalColumn(name="item")),
    continuous=(ContinuousColumn(name="price"),),
)


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ({}, [1, 0, 2.5]),
        ({"click": "Yes", "buy": True, "sec": -3}, [1, 1, -3]),
        ({"click": 0.0, "buy": None, "sec": " 1e3 "}, [0, None, 1000]),
        ({"click": None, "buy": "", "sec": 7}, [None, None, 7]),
        ({"click": None, "sec": None}, [None, 0, None]),
    ],
)
def test_labels_of_a_message(given, labels):
    events, damage = encode_messages([message(**given), message()], LABELS)
    assert not damage.reasons and events.labels.dtype == np.float32
    wanted = [[np.nan if x is None else x for x in labels], [1, 0, 2.5]]
    np.testing.assert_array_equal(events.labels, np.array(wanted, np.float32))


def test_columns_made_in_python_are_checked():
    with pytest.raises(InputError, match="'time' is no label"):
        replace(LABELS, regression=("time",))


SEVERAL = """\
label: click
time: time
categorical:
- {name: genres, separator: ", "}
- {name: tags, separator: "|", max_values: 2, keep: last}
continuous: [price]
vectors: [{name: text, length: 3}]
vector_separator: " "
"""
VALUES = {"click": 1, "time": 5, "genres": "b, é", "tags": "a|7||a", "price": 0, "text": "1 2 3"}


def test_separators_of_their_own(features_file, tmp_path):
    features, file = features_file(SEVERAL), tmp_path / "log.tsv"
    file.write_text("\n".join("\t".join(map(str, x)) for x in (VALUES, VALUES.values())) + "\n")
    lists = {"genres": ["b", "é"], "tags": ["a", 7, "a"], "text": [1, "2", 3.0]}
    (log,) = EventLog([file], features)
    for row in (VALUES, VALUES | lists):
        message, damage = encode_messages([json.dumps(row).encode()], features)
        done = encode_requests([row], features)
        assert not damage.reasons and not done.damaged
        for found in (log, message, done.events):
            assert found.ids.values.tolist() == [*map(text_id, ("b", "é", "7", "a"))]
            assert found.ids.lengths.tolist() == [[2, 2]]
            assert found.numbers.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("genres", pa.array([[0.5]]), r"'genres' has 0.5 \(double\), whose text is not unique"),
        ("genres", pa.array([[[]]], pa.list_(pa.list_(pa.int8()), 1)), "'genres' is fixed_.*; con"),
        ("genres", pa.array([7]), "'genres' is int64, but holds several values"),
        ("price", pa.array([["a"]]), "several values per row; give it a separator"),
        ("text", pa.array([0.5]), "'text' is double, but holds a vector per row; give lists, or t"),
        ("text", pa.array([[True]]), "'text' has lists of bool, not of numbers"),
    ],
)
def test_parquet_of_other_types(features_file, tmp_path, name, values, words):
    text = SEVERAL if name != "price" else "label: click\ntime: time\ncategorical: [price]\n"
    columns = {each: pa.array([value]) for each, value in VALUES.items()} | {name: values}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    with pytest.raises(InputError, match=words):
        list(EventLog([tmp_path / "log.parquet"], features_file(text)))
