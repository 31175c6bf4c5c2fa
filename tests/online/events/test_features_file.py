from pathlib import Path

import pytest

from cowclip_merlin.online.events.columns import CategoricalColumn, ListRules, VectorColumn
from cowclip_merlin.online.events.values import NumberScaling
from cowclip_merlin.tables import FieldRules

LIST = "label: y\ntime: t\n"


def test_a_whole_file(features_file):
    features = features_file()
    assert (features.label, features.time, features.key) == ("click", "time", "request")
    assert features.categorical == (
        CategoricalColumn(name="user", rules=FieldRules(ttl=0, admit=1)),
        CategoricalColumn(name="item", rules=FieldRules(ttl=5 * 86_400, admit=2)),
    )
    assert [c.scaling for c in features.continuous] == [
        NumberScaling(transform="signed_log"),
        NumberScaling(transform="none", lower=0, upper=100),
    ]
    assert features.inputs == ("user", "item", "price", "age")


@pytest.mark.parametrize(
    ("ttl", "seconds"), [("90", 90), ("45s", 45), ("30min", 1800), ("5h", 18_000), ("2d", 172_800)]
)
def test_times_to_live(features_file, ttl, seconds):
    (column,) = features_file(LIST + f"categorical: [{{name: a, ttl: {ttl}}}]\n").categorical
    assert column.rules.ttl == seconds


def test_rules_for_a_growing_table(features_file):
    text = "categorical:\n- a\n- {name: b, ttl: 1d, admit: 3, min_rows: 50, buckets: 7}\n"
    features = features_file(LIST + text)
    assert features.rules == {"a": FieldRules(), "b": FieldRules(ttl=86_400, admit=3, min_rows=50)}
    assert [column.buckets for column in features.categorical] == [None, 7]


def test_columns_with_several_values(features_file):
    text = "categorical:\n- a\n- {name: b, separator: ';', max_values: 9, keep: last}\n"
    text += "- {name: c, separator: ', ', combiner: sum}\n"
    assert features_file(LIST + text).lists == {
        "b": ListRules(separator=";", max_values=9, keep="last"),
        "c": ListRules(separator=", ", combiner="sum"),
    }


def test_columns_that_share_a_table(features_file):
    text = "categorical:\n- item\n- {name: seen, separator: '|', table: item}\n"
    features = features_file(LIST + text + "- {name: last, table: item}\n- user\n")
    assert features.shared == {"seen": "item", "last": "item"}
    assert features.tables == ("item", "user") and features.table_of_column == (0, 0, 0, 1)
    assert features.rules == {"item": FieldRules(), "user": FieldRules()}
    assert features_file(LIST + "categorical: [a]\n").table_of_column is None


def test_vectors(features_file):
    text = "categorical: [a]\ncontinuous: [x]\nvectors: [{name: v, length: 64}]\n"
    features = features_file(LIST + text)
    assert features.vectors == (VectorColumn(name="v", length=64),)
    assert features.inputs == ("a", "x", "v") and features.num_numbers == 65
    assert features.log_format(Path("log.csv")).vectors == {"v": 64}


def test_time_and_key_may_be_categorical_too(features_file):
    features = features_file(LIST + "key: k\ncategorical: [t, k]\n")
    assert features.identifiers == ("t", "k")
