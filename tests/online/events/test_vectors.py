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
from cowclip_merlin.online.events.features import VectorColumn
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.requests import encode_requests

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


def test_a_separator_is_given(features_file, tmp_path):
    features, file = features_file(FEATURES + 'vector_separator: " "\n'), tmp_path / "log.csv"
    file.write_text("click,time,request,user,price,text,image\n1,5,1,7,0,1 2 3,0.5\n")
    (events,) = EventLog([file], features)
    done = encode_requests([ROW | {"text": "1 2 3"}], features)
    assert done.events.numbers.tolist() == events.numbers.tolist() == [[0, 1, 2, 3, 0.5]]


def test_parquet_of_other_types(features_file, tmp_path):
    columns = {name: pa.array([value]) for name, value in ROW.items()}
    for values, words in (
        (pa.array([0.5]), "'text' is double, but holds a vector per row; give lists, or text"),
        (pa.array([[True]]), "'text' has lists of bool, not of numbers"),
    ):
        pq.write_table(pa.table(columns | {"text": values}), tmp_path / "log.parquet")
        with pytest.raises(InputError, match=words):
            list(EventLog([tmp_path / "log.parquet"], features_file(FEATURES)))


START = "label: y\ntime: t\ncategorical: [a]\n"


def test_a_features_file_names_vectors(features_file):
    features = features_file(START + "continuous: [x]\nvectors: [{name: v, length: 64}]\n")
    assert features.vectors == (VectorColumn(name="v", length=64),)
    assert features.inputs == ("a", "x", "v") and features.num_numbers == 65
    assert features.log_format(Path("log.csv")).vectors == {"v": 64}
