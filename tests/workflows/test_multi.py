"""Columns with several values per row: lists of parquet, and text with a separator."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare
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


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("multi")
    (folder / "csv").mkdir()
    return prepared(folder)


def tags_of(data, split):
    """The texts of the ids of each row, as the folder has them."""
    value = id_to_value(data, "tags")
    rows = pa.concat_tables([pq.read_table(file) for file in data.files(split)])
    assert rows.schema.field("tags").type == pa.list_(pa.int32())
    return [[value[i] for i in row] for row in rows["tags"].to_pylist()]


def test_every_row_keeps_its_values(data):
    given_rows = [[value for value in tags.split("|") if value] for _, tags, _ in ROWS]
    found = tags_of(data, "train") + tags_of(data, "test")
    assert sorted(map(str, found)) == sorted(map(str, given_rows * 20))


def test_occurrences_are_counted_also_twice_in_one_row(data):
    train = [value for row in tags_of(data, "train") for value in row]
    counts = read_counts(data, "tags").to_pydict()
    assert counts["value"][3:][0] == "b"
    for value, count in zip(counts["value"][3:], counts["count"][3:], strict=True):
        assert train.count(value) == count
    assert counts["count"][:3] == [0, 0, 0]


def test_text_and_lists_are_prepared_alike(data, tmp_path):
    (tmp_path / "parquet").mkdir()
    other = prepared(tmp_path, "parquet")
    assert other.vocabulary == data.vocabulary
    assert tags_of(other, "test") == tags_of(data, "test")


def test_the_schema_names_the_lists(data):
    tags = data.schema["tags"]
    assert tags.is_list and tags.is_ragged and not data.schema["user"].is_list
    assert PreparedData.load(data.path).log_format.multi == {"tags": "|"}


@pytest.mark.parametrize(("keep", "kept"), [("first", ["b", "a"]), ("last", ["a", "d"])])
def test_too_many_values_are_cut_and_counted(tmp_path, capsys, keep, kept):
    (tmp_path / "csv").mkdir()
    data = prepared(tmp_path, max_values=2, keep_values=keep)
    rows = tags_of(data, "train") + tags_of(data, "test")
    assert kept in rows and max(map(len, rows)) == 2
    assert "tags: left out 20 values, those beyond 2 per row" in capsys.readouterr().out
    assert data.schema["tags"].properties["value_count"] == {"min": 0, "max": 2}


def test_new_rows_have_the_same_ids(data, tmp_path, capsys):
    file = table(tmp_path, "csv", [("u1", "a|new", 1), ("u9", "", 0)])
    new = prepare(
        PrepareSettings(files=(file,), out=tmp_path / "NEW", kind="table", like=data.path)
    )
    assert tags_of(new, "test")[:2] == [["a", None], []]
    assert "user 50.0%, tags 50.0%" in capsys.readouterr().out
    assert new.vocabulary == data.vocabulary


def test_the_workflow_takes_text_and_lists(data):
    ids = cc.workflows.prepared.counts.value_to_id(data, "tags")
    workflow = data.workflow().remove_inputs(["y"])
    for tags in (["a|b", None, "zzz"], [["a", "b"], None, ["zzz"]]):
        frame = pd.DataFrame({"user": ["u1"] * 3, "tags": pd.Series(tags, dtype=object)})
        found = [list(row) for row in workflow.transform(frame)["tags"]]
        assert found == [[ids["a"], ids["b"]], [], [2]]


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


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        (["--max-values", "2"], "--max-values has no effect without --multi"),
        (["--multi", "tags", "--max-values", "-1"], "--max-values is -1; it must be at least 0"),
        (["--multi", "tags", "--multi-separator", ""], "--multi-separator is empty"),
        (["--multi", "tags", "--keep-values", "last"], "--keep-values has no effect without"),
        (["--multi", "n"], "column 'n' is int64, but holds several values per row by --multi"),
        (["--categorical", "user,tags"], "column 'tags' is list.*name it in --multi, too"),
        (["--multi", "nested"], r"column 'nested' is list<.*>, lists of lists; give one list"),
        (
            ["--multi", "shown"],
            r"column 'shown' has text such as \['a', 'b'\], the print of a list",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, capsys, given_options, message):
    frame = pd.DataFrame({"user": ["a", "b"], "tags": [["x"], ["y"]], "n": [1, 2], "y": [0, 1]})
    frame = frame.assign(nested=[[["x"]], []], shown=["['a', 'b']", '["c"]'])
    frame.to_parquet(tmp_path / "log.parquet")
    words = ["prepare", "table", str(tmp_path / "log.parquet"), "--out", str(tmp_path / "DATA")]
    words += ["--label", "y", "--categorical", "user", *given_options]
    assert main(words) == 2
    with pytest.raises(InputError, match=message):
        raise InputError(capsys.readouterr().err)
    assert not (tmp_path / "DATA").exists()
