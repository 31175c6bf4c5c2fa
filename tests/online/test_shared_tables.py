"""Columns that share a table online: their ids, and the features file."""

import json
from dataclasses import replace

import numpy as np

from cowclip_merlin.online.events.buckets import bucket_ids
from cowclip_merlin.online.events.features import (
    CategoricalColumn,
    ContinuousColumn,
    ListRules,
    LogFeatures,
)
from cowclip_merlin.online.events.ids import MISSING, text_id
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.tables.layout import FieldRules

LISTS = ListRules(separator="|")
FEATURES = LogFeatures(
    label="click",
    time="time",
    categorical=(
        CategoricalColumn(name="seen", lists=LISTS, table="item"),
        CategoricalColumn(name="user"),
        CategoricalColumn(name="item", rules=FieldRules(ttl=500)),
        CategoricalColumn(name="last", table="item"),
    ),
    continuous=(ContinuousColumn(name="age"),),
)


def test_columns_of_a_table_have_its_ids_and_buckets():
    columns = (replace(FEATURES.categorical[2], buckets=7), *FEATURES.categorical[:2])
    features = replace(FEATURES, categorical=columns)
    row = {"item": "x", "seen": ["y", "x"], "user": None, "age": 0, "time": 5, "click": 1}
    events, damage = encode_messages([json.dumps(row).encode()], features)
    assert not damage.reasons and events.ids.lengths.tolist() == [[1, 2, 1]]
    ids = np.array([text_id("x"), text_id("y"), text_id("x")])
    assert events.ids.values.tolist() == [*bucket_ids(ids, 0, 7).tolist(), MISSING]


FILE = "label: y\ntime: t\ncategorical:\n- item\n"


def test_a_features_file_names_the_table(features_file):
    text = "- {name: seen, separator: '|', table: item}\n- {name: last, table: item}\n- user\n"
    features = features_file(FILE + text)
    assert features.shared == {"seen": "item", "last": "item"}
    assert features.tables == ("item", "user") and features.table_of_column == (0, 0, 0, 1)
    assert features.rules == {"item": FieldRules(), "user": FieldRules()}
    assert features_file(FILE).table_of_column is None
