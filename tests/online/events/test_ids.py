"""Ids of values, and buckets of ids: the same for ever, from any door."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.online import EventLog, encode_requests, load_features
from cowclip_merlin.online.events.buckets import bucket_ids
from cowclip_merlin.online.events.columns import CategoricalColumn, ListRules
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.values import MISSING, text_id, text_ids

EDGES = st.integers(-(2**66), 2**66) | st.sampled_from([2**63 - 1, 2**63, -(2**63), 1 - 2**63, 0])
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | EDGES.map(str) | st.none()


# These are part of the format of runs: a change would give every id another row.
@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("0", 0),
        ("-1", -1),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775807", 1 - 2**63),
        ("9223372036854775808", -4436916390290898806),
        ("-9223372036854775808", 1307324877175274915),
        ("1.0", 1),
        ("9007199254740992.0", -4038054885858833134),
        ("1.5", 3831814941423113338),
        ("042", -3674937487732630020),
        ("-0", 7133245170051001874),
        ("été", -2873208181647912516),
        (" 1", -3114765847432465156),
    ],
)
def test_ids_are_the_same_for_ever(text, id_):
    assert text_id(text) == id_ and text_ids(pa.array([text])).tolist() == [id_]


@given(st.lists(TEXTS, max_size=20))
def test_a_column_has_the_ids_of_its_values(values):
    wanted = [text_id(value) if value else MISSING for value in values]
    others = [*range(1025)]  # few values take another way than many
    for each in ({"keep_text": False}, {"keep_text": True}):
        found = text_ids(pa.array([*values, *map(str, others)], pa.string()), **each).tolist()
        assert found == text_ids(pa.array(values, pa.string()), **each).tolist() + others
    assert text_ids(pa.array(values, pa.string())).tolist() == wanted
    chunks = [values[:3], values[3:]]
    assert text_ids(pa.chunked_array(chunks, pa.string())).tolist() == wanted


@given(EDGES, TEXTS.filter(bool))
def test_whole_numbers_are_their_own_ids_and_no_value_is_a_missing_one(number, text):
    fits = -(2**63) < number < 2**63
    assert (text_id(str(number)) == number) == fits
    assert MISSING < text_id(text) < 2**63


def test_forms_of_one_are_different_values():
    forms = ["1", "1.5", "1.", "01", "01.0", "+1", " 1", "1 ", "\uff11", "1e0", "True"]
    assert len({text_id(form) for form in forms}) == len(forms)


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(UnicodeEncodeError):
        text_id("\ud800")


IDS = st.integers(-(2**63), 2**63 - 1)
BUCKETS = st.sampled_from([1, 2, 3, 10, 2**31 - 1]) | st.integers(1, 2**31 - 1)


def ids_of(*values):
    return np.array(values, np.int64)


@given(st.lists(IDS, min_size=1, max_size=20), st.integers(0, 200), BUCKETS, st.integers(0, 99))
def test_equal_ids_have_equal_buckets_in_range(values, field, buckets, seed):
    ids = ids_of(*values, *values[::-1])
    hashed = bucket_ids(ids, field, buckets, seed=seed)
    np.testing.assert_array_equal(hashed[: len(values)], hashed[len(values) :][::-1])
    missing = ids == MISSING
    np.testing.assert_array_equal(hashed == MISSING, missing)
    assert ((hashed >= 0) & (hashed < buckets))[~missing].all()
    for i in range(len(values)):  # an id's bucket does not depend on the ids beside it
        assert bucket_ids(ids[i : i + 1], field, buckets, seed=seed)[0] == hashed[i]


# These are part of the format of runs: a change would give every id another row.
def test_buckets_are_the_same_for_ever():
    ids = ids_of(0, 1, -1, 2**63 - 1, 1 - 2**63, MISSING)
    assert bucket_ids(ids, 0, 1000).tolist() == [871, 807, 904, 760, 421, MISSING]
    assert bucket_ids(ids, 3, 1000).tolist() == [205, 216, 534, 966, 290, MISSING]


@pytest.mark.parametrize("buckets", [100, 128, 997])
@pytest.mark.parametrize(
    "ids",
    [np.arange(50_000), np.arange(50_000) * 128, np.arange(50_000) * -(2**40) + 5],
    ids=["consecutive", "multiples", "upper bits"],
)
def test_buckets_are_occupied_evenly(ids, buckets):
    """Chi-squared of uniform buckets has mean `buckets` - 1 and variance twice that."""
    counts = np.bincount(bucket_ids(ids, 2, buckets), minlength=buckets)
    expected = len(ids) / buckets
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_squared - (buckets - 1)) < 5 * np.sqrt(2 * (buckets - 1))


@pytest.mark.parametrize("load", [0.059, 0.163, 1, 4])
def test_occupied_buckets_are_those_of_a_random_hash(load):
    n = 40_000
    buckets = round(n / load)
    used = len(np.unique(bucket_ids(np.arange(n), 0, buckets)))
    assert used == pytest.approx(buckets * -np.expm1(-n / buckets), rel=0.01)


def test_fields_and_seeds_are_unrelated():
    """Ids that collide in one field are apart in another one, but for chance."""
    ids = np.arange(20_000)
    first = bucket_ids(ids, 0, 10_000)
    for other in (bucket_ids(ids, 1, 10_000), bucket_ids(ids, 0, 10_000, seed=1)):
        assert np.mean(first == other) < 0.001
        pairs = len(np.unique(first * 10_000 + other))
        assert pairs > 0.999 * len(ids)


FEATURES = "label: y\ntime: t\ncategorical:\n- {name: plain}\n- {name: hashed, buckets: 7}\n"
VALUES = st.none() | st.integers(-(2**66), 2**66).map(str) | st.text("abc", max_size=4)


@given(values=st.lists(VALUES, min_size=1, max_size=8))
@settings(max_examples=30)
def test_a_log_and_requests_agree(values, features_of_buckets, tmp_path_factory):
    file = tmp_path_factory.mktemp("log") / "log.parquet"
    column = pa.array(values, pa.string())
    rows = range(len(values))
    table = {"y": [1] * len(values), "t": list(rows), "plain": column, "hashed": column}
    pq.write_table(pa.table(table), file)
    (events,) = EventLog([file], features_of_buckets)
    requests = [{"plain": value, "hashed": value} for value in values]
    scored = encode_requests(requests, features_of_buckets).events
    np.testing.assert_array_equal(events.ids.values, scored.ids.values)
    plain = text_ids(column)
    np.testing.assert_array_equal(events.ids.values[:, 0], plain)
    np.testing.assert_array_equal(events.ids.values[:, 1], bucket_ids(plain, 1, 7))


@pytest.fixture(scope="module")
def features_of_buckets(tmp_path_factory):
    path = tmp_path_factory.mktemp("features") / "f.yaml"
    path.write_text(FEATURES)
    return load_features(path)


def test_columns_of_a_table_have_its_ids_and_buckets():
    item, user = CategoricalColumn(name="item", buckets=7), CategoricalColumn(name="user")
    seen = CategoricalColumn(name="seen", lists=ListRules(separator="|"), table="item")
    features = LogFeatures(label="click", time="time", categorical=(item, seen, user))
    row = {"item": "x", "seen": ["y", "x"], "user": None, "time": 5, "click": 1}
    events, damage = encode_messages([json.dumps(row).encode()], features)
    assert not damage.reasons and events.ids.lengths.tolist() == [[1, 2, 1]]
    ids = np.array([text_id("x"), text_id("y"), text_id("x")])
    assert events.ids.values.tolist() == [*bucket_ids(ids, 0, 7).tolist(), MISSING]
