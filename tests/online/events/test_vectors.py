"""Columns with a vector per row: text, parquet, messages and requests give equal numbers."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import VectorColumn
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.raw_events import RawLog
from cowclip_merlin.online.events.requests import encode_requests
from cowclip_merlin.online.joining.examples import ExampleWriter
from cowclip_merlin.online.joining.messages import MessageParser
from cowclip_merlin.online.producing.messages import EventMessages

LENGTH = 3
FEATURES = """\
label: click
time: time
key: request
categorical: [user]
continuous: [price]
vectors:
- {name: text, length: 3}
- {name: image, length: 1}
"""
ROW = {"click": 1, "time": 5, "request": 1, "user": 7, "price": 0, "image": [0.5]}
TEXTS = {"1": 1.0, " -2.5 ": -2.5, "1e-3": 1e-3, "x": None, "": None, "nan": None, "1e39": None}
ELEMENTS = (
    st.floats()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([*TEXTS, 10**400, None, True, [1.0], {}])
)
VECTORS = (
    st.lists(st.floats(width=32) | st.integers(-9, 9), min_size=LENGTH, max_size=LENGTH)
    | st.lists(ELEMENTS, max_size=4)
    | st.lists(st.sampled_from([*TEXTS]), max_size=4).map("|".join)
    | st.sampled_from([None, 7, 0.5, False, {}, {"a": 1}])
)
quick = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


def number_of(each):
    """A number, or None if it is not one that float32 can express."""
    if isinstance(each, str):
        each = TEXTS[each]
    if type(each) not in (int, float):
        return None
    number = np.float32(min(max(each, -1e300), 1e300)) if each == each else np.float32("nan")
    return float(number) if np.isfinite(number) else None


@np.errstate(over="ignore")
def expected(value):
    """The numbers of a vector, found one by one; None if it is malformed."""
    values = value.split("|") if isinstance(value, str) else value
    if not isinstance(values, list) or len(values) != LENGTH:
        return None
    numbers = [number_of(each) for each in values]
    return None if None in numbers else numbers


@quick
@given(vectors=st.lists(VECTORS, min_size=1, max_size=5))
def test_messages_and_requests_are_those_of_a_slow_reference(vectors, features_file):
    features = features_file(FEATURES)
    rows = [ROW | {"text": vector} for vector in vectors]
    wanted = [expected(vector) for vector in vectors]
    good = [[0, *vector, 0.5] for vector in wanted if vector is not None]
    events, damage = encode_messages([json.dumps(row).encode() for row in rows], features)
    done = encode_requests(rows, features)
    assert done.damaged == damage.reasons
    assert {*damage.reasons} == {i for i, vector in enumerate(wanted) if vector is None}
    assert all(reason.startswith("text") for reason in damage.reasons.values())
    for found in (done.events.numbers, events.filter(damage.good(len(rows))).numbers):
        assert found.dtype == np.float32 and found.tolist() == good


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1, 2], "text has 2 numbers, not 3"),
        (None, "text is missing; a vector needs its 3 numbers"),
        ([], "text is missing; a vector needs its 3 numbers"),
        ("", "text is missing; a vector needs its 3 numbers"),
        ([1, "a", 2], "text[1] is 'a', not a finite number"),
        ([1, None, 2], "text[1] is missing, not a finite number"),
        ([1, 2, float("nan")], "text[2] is 'nan', not a finite number"),
        ([float("-inf"), 1, 2], "text[0] is '-inf', not a finite number"),
        ([1e39, 1, 2], "text[0] is '1e+39', not a finite number"),
        ([10**400, 1, 2], "text[0] has hundreds of digits; give it as text"),
        ([True, 1, 2], "text[0] is 'true', not a finite number"),
        ([[1], 1, 2], "text[0] is [1] (list); give a number"),
        ("1|2", "text has 2 numbers, not 3"),
        (
            0.5,
            "text is 0.5 (float); give a list of 3 numbers, or text with '|' between them",
        ),
    ],
)
def test_a_wrong_vector_is_one_line(features_file, value, reason):
    features = features_file(FEATURES)
    done = encode_requests([ROW | {"text": [1, 2, 3]}, ROW | {"text": value}], features)
    assert done.damaged == {1: reason} and len(done.events) == 1


def test_a_message_without_a_vector(features_file):
    features = features_file(FEATURES)
    reason = "no 'text'; give its 3 numbers"
    assert encode_requests([ROW], features).damaged == {0: reason}
    joined = MessageParser(features, features.inputs).parse([json.dumps(ROW).encode()], 9.0)
    assert joined.damaged == {0: reason}
    no_price = {k: v for k, v in ROW.items() if k != "price"} | {"text": [1, 2, 3]}
    reason = "no 'price'; give null for a missing value"
    assert encode_requests([no_price], features).damaged == {0: reason}


def rows_with_vectors(number=20):
    rng = np.random.default_rng(5)
    for i in range(number):
        text, image = (rng.normal(size=n).astype("f4").tolist() for n in (LENGTH, 1))
        row = {"click": i % 2, "time": i, "request": i, "user": i % 3, "price": i / 7}
        yield row | {"text": text, "image": image}


def written(folder, rows, kind):
    """A log of the rows in a file of some kind."""
    if kind in ("csv", "tsv"):
        file, between = folder / f"log.{kind}", "," if kind == "csv" else "\t"
        cells = [
            ["|".join(map(repr, x)) if isinstance(x, list) else str(x) for x in row.values()]
            for row in rows
        ]
        file.write_text("".join(f"{between.join(each)}\n" for each in [list(rows[0]), *cells]))
        return file
    types = {
        "float": pa.list_(pa.float32()),
        "large": pa.large_list(pa.float64()),
        "fixed": pa.list_(pa.float32(), LENGTH),
    }
    table = pa.Table.from_pylist(rows)
    text = pa.array([row["text"] for row in rows], types[kind])
    table = table.set_column(table.column_names.index("text"), "text", text)
    pq.write_table(table, folder / "log.parquet")
    return folder / "log.parquet"


@pytest.mark.parametrize("kind", ["csv", "tsv", "float", "large", "fixed"])
def test_logs_of_files_give_the_numbers_of_messages(features_file, tmp_path, kind):
    features, rows = features_file(FEATURES), list(rows_with_vectors())
    file = written(tmp_path, rows, kind)
    found = Events.concatenate(list(EventLog([file], features, block_bytes=300)))
    wanted, damage = encode_messages([json.dumps(row).encode() for row in rows], features)
    vectors = np.float32([row["text"] + row["image"] for row in rows])
    np.testing.assert_array_equal(wanted.numbers[:, 1:], vectors)
    np.testing.assert_array_equal(found.numbers, wanted.numbers)
    messages = EventMessages(features)
    sent = [m for events in RawLog([file], features) for m in messages.examples(events, None)]
    assert not damage.reasons and len(sent) == len(rows)
    np.testing.assert_array_equal(encode_messages(sent, features)[0].numbers, wanted.numbers)


@pytest.mark.parametrize("kind", ["csv", "float"])
def test_a_wrong_vector_in_a_file_is_set_aside(features_file, tmp_path, kind):
    rows = list(rows_with_vectors())
    rows[3]["text"], rows[8]["text"][1] = [1.0, 2.0], float("inf")
    log = EventLog([written(tmp_path, rows, kind)], features_file(FEATURES), max_bad_fraction=1)
    assert sum(len(events) for events in log) == 18
    first = 2 if kind == "csv" else 1
    assert [(bad.line - first, bad.reason) for bad in log.damaged.first] == [
        (3, "text has 2 numbers, not 3"),
        (8, f"text[1] is {'inf' if kind == 'float' else repr('inf')}, not a finite number"),
    ]


def test_a_separator_is_given(features_file, tmp_path):
    features = features_file(FEATURES + 'vector_separator: " "\n')
    file = written(tmp_path, list(rows_with_vectors()), "csv")
    file.write_text(file.read_text().replace("|", " "))
    assert sum(len(events) for events in EventLog([file], features)) == 20
    assert not encode_requests([ROW | {"text": "1 2 3"}], features).damaged


def test_parquet_of_other_types(features_file, tmp_path):
    columns = {name: pa.array([value]) for name, value in ROW.items()}
    for values, words in (
        (pa.array([0.5]), "'text' is double, but holds a vector per row; give lists, or text"),
        (pa.array([[True]]), "'text' has lists of bool, not of numbers"),
    ):
        pq.write_table(pa.table(columns | {"text": values}), tmp_path / "log.parquet")
        with pytest.raises(InputError, match=words):
            list(EventLog([tmp_path / "log.parquet"], features_file(FEATURES)))


def test_a_join_passes_vectors_on(features_file):
    features, row = features_file(FEATURES), next(rows_with_vectors())
    impression = json.dumps({name: x for name, x in row.items() if name != "click"}).encode()
    found, damage = encode_messages([ExampleWriter("click", 0.5).write(impression, 1)], features)
    assert not damage.reasons
    assert found.numbers.tolist() == [[0, *row["text"], *row["image"]]]


START = "label: y\ntime: t\ncategorical: [a]\n"


def test_a_features_file_names_vectors(features_file):
    features = features_file(START + "continuous: [x]\nvectors: [{name: v, length: 64}]\n")
    assert features.vectors == (VectorColumn(name="v", length=64),)
    assert features.inputs == ("a", "x", "v") and features.num_numbers == 65
    assert features.log_format(Path("log.csv")).vectors == {"v": 64}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("vectors: v", "line 4: vectors is 'v'; give a list of columns"),
        ("vectors: [v]", "line 4: length of 'v' is None; give how many numbers each vector has, "),
        ("vectors:\n- {name: v, length: 0}", "line 5: length of 'v' is 0; .*, from 1 to 65,536"),
        ("vectors: [{name: v, length: 65537}]", "length of 'v' is 65537; "),
        ("vectors: [{name: v, length: true}]", "length of 'v' is True; "),
        ("vectors: [{name: v, length: '3'}]", "length of 'v' is '3'; "),
        ("vectors: [{name: v, width: 3}]", "line 4: unknown 'width'; there are name, length"),
        ("vectors: [{name: a, length: 3}]", "line 4: column 'a' is also categorical; give each"),
        ("vectors: [{name: t, length: 3}]", "line 4: column 't' is also time; give each"),
        ("vector_separator: ' '", "line 4: vector_separator has no effect without vectors"),
        (
            "vector_separator: ''\nvectors: [{name: v, length: 3}]",
            "line 4: vector_separator is ''; give text",
        ),
    ],
)
def test_wrong_vectors_of_a_features_file(features_file, lines, words):
    with pytest.raises(InputError, match=words) as error:
        features_file(f"{START}{lines}\n")
    assert "f.yaml: " in str(error.value) and "\n" not in str(error.value)
