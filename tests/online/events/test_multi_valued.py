"""Columns with several values per row: text, parquet, messages and requests have equal ids."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.buckets import bucket_ids
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.ids import MISSING, text_id
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.raw_events import RawLog
from cowclip_merlin.online.events.requests import encode_requests
from cowclip_merlin.online.producing.messages import EventMessages

FEATURES = """\
label: click
time: time
categorical:
- {name: genres, separator: ", "}
- user
- {name: tags, separator: "|", max_values: 2, keep: last, buckets: 7}
continuous: [price]
"""
VALUE = st.sampled_from(["a", "b", "7", "-1", "007", " x", "é"])
LISTS = st.lists(VALUE, max_size=4)
ROWS = st.lists(st.tuples(LISTS, VALUE | st.none(), LISTS), min_size=1, max_size=6)
quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def expected(rows):
    """Ids and lengths by plain loops."""
    values, lengths = [], []
    for genres, user, tags in rows:
        values += [text_id(each) for each in genres]
        values.append(MISSING if user is None else text_id(user))
        kept = np.array([text_id(each) for each in tags[-2:]], np.int64)
        values += bucket_ids(kept, 2, 7).tolist()
        lengths.append([len(genres), 1, len(kept)])
    return values, lengths


def assert_ids(ids, rows):
    values, lengths = expected(rows)
    assert ids.values.tolist() == values and ids.lengths.tolist() == lengths
    assert (ids.values.dtype, ids.lengths.dtype) == (np.int64, np.int32)


def events_of(file, features):
    return Events.concatenate(list(EventLog([file], features, block_bytes=64)))


def as_json(rows):
    names = ("genres", "user", "tags")
    return [dict(zip(names, row)) | {"price": 1, "time": 5, "click": 1} for row in rows]


def in_text(rows):
    """The rows with text instead of lists."""
    return [("| ".join(g).replace("|", ","), user, "||".join(t)) for g, user, t in rows]


@quick
@given(rows=ROWS)
def test_a_text_log_and_its_messages(rows, features_file, tmp_path):
    features, file = features_file(FEATURES), tmp_path / "log.tsv"
    lines = ["\t".join(["1", "5", g, u or "", t, "1"]) for g, u, t in in_text(rows)]
    text = "\n".join(["click\ttime\tgenres\tuser\ttags\tprice", *lines]) + "\n"
    file.write_text(text, encoding="utf-8")
    assert_ids(events_of(file, features).ids, rows)
    messages = EventMessages(features)
    sent = [m for events in RawLog([file], features) for m in messages.examples(events, None)]
    assert isinstance(json.loads(sent[0])["genres"], list)
    found, damage = encode_messages(sent, features)
    assert not damage.reasons
    assert_ids(found.ids, rows)


@quick
@given(rows=ROWS)
def test_parquet(rows, features_file, tmp_path):
    features, file = features_file(FEATURES), tmp_path / "log.parquet"
    table = pa.Table.from_pylist(as_json(rows))
    for name in ("genres", "tags"):
        kind = pa.large_list(pa.string()) if name == "tags" else pa.list_(pa.string())
        lists = pa.array([row[name] or None for row in as_json(rows)], kind)
        table = table.set_column(table.column_names.index(name), name, lists)
    table = table.set_column(1, "user", table["user"].cast(pa.string()))
    pq.write_table(table, file)
    assert_ids(events_of(file, features).ids, rows)


@quick
@given(rows=ROWS)
def test_requests_and_messages(rows, features_file):
    features = features_file(FEATURES)
    for given_rows in (as_json(rows), as_json(in_text(rows))):
        done = encode_requests(given_rows, features)
        assert not done.damaged
        assert_ids(done.events.ids, rows)
        values = [json.dumps(row).encode() for row in given_rows]
        assert_ids(encode_messages(values, features)[0].ids, rows)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([[0.5]]), r"'genres' has 0.5 \(double\), whose text is not unique"),
        (pa.array([[[]]], pa.list_(pa.list_(pa.int8()), 1)), "'genres' is fixed_.*; convert"),
        (pa.array([7]), "'genres' is int64, but holds several values"),
    ],
)
def test_parquet_of_other_types(features_file, tmp_path, values, words):
    columns = {"user": pa.array(["u"]), "tags": pa.array(["a"]), "genres": values}
    more = {name: pa.array([1]) for name in ("click", "time", "price")}
    pq.write_table(pa.table(columns | more), tmp_path / "log.parquet")
    with pytest.raises(InputError, match=words):
        events_of(tmp_path / "log.parquet", features_file(FEATURES))
    plain = features_file("label: click\ntime: time\ncategorical: [genres]\n")
    if not pa.types.is_integer(values.type):
        with pytest.raises(InputError, match="several values per row; give it a separator"):
            events_of(tmp_path / "log.parquet", plain)
