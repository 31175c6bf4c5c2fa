"""Columns with the ids of another one: one vocabulary, counted over all of them."""

import json
from collections import Counter

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows import PreparedData, PrepareSettings, Recipe, prepare
from cowclip_merlin.workflows.prepared.counts import id_to_value, read_counts, value_to_id

ROWS = [
    ("u1", "a", "b|c", "x", 1),
    ("u2", "b", "", "y", 0),
    ("u1", "a", "b||b", "x", 1),
    ("u3", "d", "e", "", 0),
    ("u2", "", "a|d|e", "z|x|x", 1),
]


def log(folder, rows=ROWS, name="log.csv"):
    frame = pd.DataFrame(rows, columns=["user", "item", "liked", "genres", "y"])
    frame["genre"] = ["x", "q", "x", "z", "q"][: len(rows)]
    (pd.concat([frame] * 20) if len(rows) > 2 else frame).to_csv(folder / name, index=False)
    return folder / name


def prepared(folder, **settings):
    columns = {"kind": "table", "label": "y", "categorical": ("user", "item", "genre")}
    columns |= {"multi": ("liked", "genres")}
    shared = {"share_embedding": ("liked=item", "genre=genres")}
    settings = columns | shared | settings
    return prepare(PrepareSettings(files=(log(folder),), out=folder / "DATA", **settings))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("shared"), partition_mb=0.001)


def read(data, split="train"):
    return pa.concat_tables([pq.read_table(file) for file in data.files(split)])


def test_an_id_is_the_same_value_in_all_columns(data):
    rows = read(data)
    for table, columns in {"item": ("item", "liked"), "genres": ("genre", "genres")}.items():
        counted = Counter()
        for name in columns:
            assert value_to_id(data, name) == value_to_id(data, table)
            for ids in rows[name].to_pylist():
                counted.update(ids if isinstance(ids, list) else [ids])
        counts = read_counts(data, columns[0]).to_pydict()
        assert [counted[id_] for id_ in counts["id"]] == counts["count"]
    value = id_to_value(data, "liked")
    pairs = zip(rows["item"].to_pylist(), rows["liked"].to_pylist())
    known = {(value[item], *(value[i] for i in liked)) for item, liked in pairs}
    assert known == {("a", "b", "c"), ("b",), ("a", "b", "b"), ("d", "e"), (None, "a", "d", "e")}


@pytest.mark.parametrize("shared", [{"liked": "user"}, {"liked": "none"}, {"none": "item"}])
def test_a_folder_with_other_shared_columns_is_damaged(data, tmp_path, shared):
    described = json.loads((data.path / "dataset.json").read_text())
    described["layout"]["share_embedding"] = shared
    (tmp_path / "dataset.json").write_text(json.dumps(described))
    with pytest.raises(InputError, match=r"damaged dataset.json \(.*cannot share a table"):
        PreparedData.load(tmp_path)


def test_a_threshold_counts_all_columns(tmp_path):
    """b is 20 times an item and 60 times liked."""
    data = prepared(tmp_path, recipe=Recipe(freq_threshold=60, fit_on="all"))
    assert value_to_id(data, "item") == {"b": 3, "a": 4}


def test_the_vocabulary_knows_whether_columns_share(data, tmp_path):
    assert prepared(tmp_path, share_embedding=("liked=item",)).vocabulary != data.vocabulary
