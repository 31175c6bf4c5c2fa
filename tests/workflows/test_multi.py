"""Columns with several values per row: lists of parquet, and text with a separator."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.workflows import PrepareSettings, prepare
from cowclip_merlin.workflows.prepared.counts import id_to_value, read_counts
from cowclip_merlin.workflows.raw.values.multi_values import cut_lists, lists_of_values

VALUES = st.lists(st.sampled_from(["a", "b", "c", "d e", "", None]), max_size=5)
ROWS = [
    ("u1", "a|b", 1),
    ("u2", "", 0),
    ("u1", "b||b", 1),
    ("u3", "c", 0),
    ("u2", "b|a|d", 1),
    ("u3", "a", 0),
]


@given(
    st.lists(st.none() | VALUES, max_size=8), st.integers(1, 4), st.sampled_from(["first", "last"])
)
def test_lists_hold_the_values_of_each_row(rows, most, keep):
    """Against plain Python, with nulls and empty values, whole and from inside a buffer."""
    array = pa.array([["x"], *rows], pa.list_(pa.string())).slice(1)
    expected = [[value for value in row or [] if value] for row in rows]
    lists = lists_of_values(array, "|", where="x")
    assert lists.to_pylist() == expected
    kept = [row[:most] if keep == "first" else row[-most:] for row in expected]
    assert cut_lists(lists, most, keep).to_pylist() == kept


@pytest.mark.parametrize(
    "to_type", [lambda x: x, lambda x: x.dictionary_encode(), pa.chunked_array]
)
def test_text_is_split(to_type):
    text = pa.array(["a;b", None, "", ";c;"])
    text = pa.chunked_array([text, text]) if to_type is pa.chunked_array else to_type(text)
    expected = [["a", "b"], [], [], ["c"]]
    assert lists_of_values(text, ";", where="x").to_pylist()[:4] == expected


@pytest.mark.parametrize("text", [["[a, b]", "a"], ["[a]", "[b]"], ["['a']", None]])
def test_brackets_in_some_values_are_text(text):
    found = lists_of_values(pa.array(text), "|", where="x")
    assert found.to_pylist() == [[value] if value else [] for value in text]


def table(folder, kind, rows=ROWS):
    """A log with the tags as text or as lists."""
    user, tags, y = zip(*rows * 20, strict=True)
    if kind == "parquet":
        tags = [text.split("|") if text else None for text in tags]
    frame = pd.DataFrame({"user": user, "tags": tags, "y": y})
    file = folder / f"log.{kind}"
    frame.to_parquet(file) if kind == "parquet" else frame.to_csv(file, index=False)
    return file


def prepared(folder, kind="csv", **settings):
    columns = {"kind": "table", "label": "y", "categorical": ("user",), "multi": ("tags",)}
    settings = columns | settings
    file = table(folder, kind)
    return prepare(PrepareSettings(files=(file,), out=folder / kind / "DATA", **settings))


def tags_of(data, split):
    """The texts of the ids of each row, as the folder has them."""
    value = id_to_value(data, "tags")
    rows = pa.concat_tables([pq.read_table(file) for file in data.files(split)])
    assert rows.schema.field("tags").type == pa.list_(pa.int32())
    return [[value[i] for i in row] for row in rows["tags"].to_pylist()]


@pytest.mark.parametrize("later", [[], [("u1", "a|b", 1)]])
def test_a_first_file_may_have_no_values(tmp_path, later):
    """Merlin looks for the type of lists in the first rows."""
    files = []
    for name, rows in (("first", [("u1", "", 0), ("u2", "", 1)]), ("second", later)):
        (tmp_path / name).mkdir()
        files += [table(tmp_path / name, "csv", rows)] if rows else []
    columns = {"kind": "table", "label": "y", "categorical": ("user",), "multi": ("tags",)}
    data = prepare(PrepareSettings(files=tuple(files), out=tmp_path / "DATA", **columns))
    rows = tags_of(data, "train") + tags_of(data, "test")
    assert [row for row in rows if row] == [["a", "b"]] * 20 * len(later)
    assert len(rows) == 40 + 20 * len(later)


def test_rare_values_share_an_id(tmp_path):
    (tmp_path / "csv").mkdir()
    recipe = cc.workflows.Recipe(freq_threshold=40)
    data = prepared(tmp_path, recipe=recipe)
    assert [None] in tags_of(data, "train"), "c occurs fewer times"
    assert read_counts(data, "tags")["count"].to_pylist()[2] > 0
