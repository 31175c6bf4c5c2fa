"""Columns with the ids of another one: one vocabulary, counted over all of them."""

import json
from collections import Counter

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cowclip_merlin.cli import main
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


def test_the_folder_says_which_columns_share(data):
    described = json.loads((data.path / "dataset.json").read_text())
    shared = {"liked": "item", "genre": "genres"}
    assert described["layout"]["share_embedding"] == shared
    assert described["settings"]["share_embedding"] == shared
    assert data.tables == {"user": 6, "item": 3 + 5, "genres": 3 + 4}
    assert data.cardinalities == {"user": 6, "item": 8, "genre": 7, "liked": 8, "genres": 7}
    domains = {name: data.schema[name].int_domain for name in data.categorical}
    assert {name: domain.name for name, domain in domains.items()} == {
        "user": "user", "item": "item", "genre": "genres", "liked": "item", "genres": "genres",
    }  # fmt: skip
    assert domains["liked"].max == 7
    names = {file.name for file in (data.path / "counts").iterdir()}
    assert names == {"user.parquet", "item.parquet", "genres.parquet"}
    assert "- liked has the ids of item" in (data.path / "summary.md").read_text()


def test_merlin_reads_the_shared_domain(data):
    from cowclip_merlin import compat

    compat.nvtabular()
    from merlin.io import Dataset

    schema = Dataset(str(data.path / "train"), engine="parquet", cpu=True).schema
    assert schema["liked"].int_domain.name == "item"
    assert data.workflow().output_schema["liked"].int_domain.name == "item"


@pytest.mark.parametrize("shared", [{"liked": "user"}, {"liked": "none"}, {"none": "item"}])
def test_a_folder_with_other_shared_columns_is_damaged(data, tmp_path, shared):
    described = json.loads((data.path / "dataset.json").read_text())
    described["layout"]["share_embedding"] = shared
    (tmp_path / "dataset.json").write_text(json.dumps(described))
    with pytest.raises(InputError, match=r"damaged dataset.json \(.*cannot share a table"):
        PreparedData.load(tmp_path)


def test_without_shared_columns_nothing_is_recorded(tmp_path):
    data = prepared(tmp_path, share_embedding=())
    assert "share_embedding" not in (data.path / "dataset.json").read_text()


def test_a_threshold_counts_all_columns(tmp_path):
    """b is 20 times an item and 60 times liked."""
    data = prepared(tmp_path, recipe=Recipe(freq_threshold=60, fit_on="all"))
    assert value_to_id(data, "item") == {"b": 3, "a": 4}


def test_new_rows_have_the_same_ids(data, tmp_path):
    file = log(tmp_path, [("u1", "e", "a|new", "z", 1), ("u9", "c", "", "q", 0)], "new.csv")
    settings = {"files": (file,), "out": tmp_path / "NEW", "kind": "table", "like": data.path}
    new, ids = prepare(PrepareSettings(**settings)), value_to_id(data, "item")
    assert read(new, "test")["item"].to_pylist() == [ids["e"], ids["c"]]
    assert read(new, "test")["liked"].to_pylist() == [[ids["a"], 2], []]
    assert new.vocabulary == data.vocabulary
    assert PreparedData.load(new.path).tables == data.tables
    workflow = data.workflow().remove_inputs(["y"])
    frame = pd.read_csv(file, keep_default_na=False).drop(columns="y")
    assert [list(x) for x in workflow.transform(frame)["liked"]] == [[ids["a"], 2], []]
    with pytest.raises(InputError, match=r"`share_embedding`: .* has other columns"):
        prepare(
            PrepareSettings(
                **settings | {"share_embedding": ("liked=user",), "out": tmp_path / "OTHER"}
            )
        )


def test_the_vocabulary_knows_whether_columns_share(data, tmp_path):
    assert prepared(tmp_path, share_embedding=("liked=item",)).vocabulary != data.vocabulary


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        ("liked", "--share-embedding: 'liked' does not name two columns; give such as"),
        ("liked=liked", "does not name two columns"),
        ("liked=item,liked=user", "has column 'liked' twice"),
        ("seen=item", "'seen' is not among the columns of --categorical and --multi"),
        ("liked=thing", "'thing' is not among"),
        ("genre=liked,liked=item", "'liked' has the ids of 'item' itself; give genre=item"),
    ],
)
def test_what_cannot_share_is_refused(tmp_path, capsys, shared, message):
    words = ["prepare", "table", str(log(tmp_path)), "--out", str(tmp_path / "DATA")]
    words += ["--label", "y", "--categorical", "user,item,genre", "--multi", "liked,genres"]
    assert main([*words, "--share-embedding", shared]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "DATA").exists()


def test_hugectr_needs_a_table_for_each_column(tmp_path, capsys):
    words = ["prepare", "table", str(log(tmp_path)), "--out", str(tmp_path / "DATA")]
    words += ["--label", "y", "--categorical", "user,item,genre", "--hugectr"]
    assert main([*words, "--share-embedding", "genre=item"]) == 2
    assert "--hugectr needs a table for each column" in capsys.readouterr().err
    assert not (tmp_path / "DATA").exists()
