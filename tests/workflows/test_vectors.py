"""Columns with a vector per row: what `prepare` reads, writes and refuses."""

import json
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.columns import Columns
from cowclip_merlin.workflows import LogFormat, PreparedData, PrepareSettings, prepare, read_log
from cowclip_merlin.workflows.raw.values.multi_values import vector_damage, vectors_of_values

COLUMNS = {"kind": "table", "label": "y", "categorical": ("user",), "continuous": ("age",)}
LENGTH = 3


def frame(rows=40):
    numbers = np.arange(rows)
    vectors = np.random.default_rng(2).normal(size=(rows, LENGTH)).astype("f4")
    columns = {"y": numbers % 2, "user": numbers % 7, "age": numbers / rows}
    return pd.DataFrame(columns | {"text": list(vectors)})


def as_text(vectors, separator="|"):
    return [separator.join(repr(float(x)) for x in vector) for vector in vectors]


def prepared(folder, rows, *, kind="csv", name="DATA", **settings):
    file = folder / f"log.{kind}"
    if kind == "parquet":
        rows.to_parquet(file)
    else:
        rows.assign(text=as_text(rows.text)).to_csv(file, index=False)
    settings = COLUMNS | {"vector": ("text",), "split": "time"} | settings
    return prepare(PrepareSettings(files=(file,), out=folder / name, **settings))


def rows_of(data):
    files = [file for split in ("train", "test") for file in data.files(split)]
    return pd.concat(map(pd.read_parquet, files))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_vectors_are_written_as_they_are(tmp_path, kind):
    data = prepared(tmp_path, frame(), kind=kind)
    written = np.stack(rows_of(data).text)
    assert written.dtype == np.float32
    np.testing.assert_array_equal(written, np.stack(frame().text))
    assert PreparedData.load(data.path).log_format.vectors == {"text": LENGTH}
    columns, schema = Columns.from_schema(data.schema), data.schema["text"]
    assert columns.widths == {"age": 1, "text": LENGTH}
    assert schema.is_list and not schema.is_ragged and schema.dtype.name == "float32"
    assert schema.properties["value_count"] == {"min": LENGTH, "max": LENGTH}


def test_vectors_beside_several_labels(tmp_path):
    rows = frame().assign(seconds=np.arange(40) / 8)
    data = prepared(tmp_path, rows, label=("y", "seconds"), regression=("seconds",))
    np.testing.assert_array_equal(np.stack(rows_of(data).text), np.stack(rows.text))
    assert rows_of(data).seconds.tolist() == rows.seconds.tolist()


def test_merlin_reads_the_schema_of_the_folder(tmp_path):
    from merlin.schema.io.tensorflow_metadata import TensorflowMetadata

    data = prepared(tmp_path, frame())
    folder = data.path / "train" / ".merlin"
    schema = TensorflowMetadata.from_json_file(str(folder), "schema.json").to_merlin_schema()
    assert Columns.from_schema(schema).vectors == {"text": LENGTH}


CELL = st.one_of(st.none(), st.just(float("nan")), st.just(1e300), st.floats(width=32))
LISTS = st.lists(st.one_of(st.none(), st.lists(CELL, max_size=4)), max_size=12)


@given(LISTS)
def test_lists_are_checked_as_a_slow_reference_checks_them(lists):
    values = pa.array(lists, pa.list_(pa.float64()))
    vectors, good = vectors_of_values(values, "|", LENGTH, where="x")
    assert vectors.type == pa.list_(pa.float32()) and len(vectors) == len(lists)
    for given_list, vector, right in zip(lists, vectors.to_pylist(), good):
        largest = float(np.finfo(np.float32).max)
        expected = (
            given_list is not None
            and len(given_list) == LENGTH
            and all(x is not None and abs(x) <= largest for x in given_list)
        )
        assert right == expected == (not vector_damage("x", given_list, "|", LENGTH))
        assert vector == (given_list if expected else [0.0] * LENGTH)


@pytest.mark.parametrize("as_list", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, LENGTH)])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.int16()])
def test_all_kinds_of_lists_are_read(as_list, kind):
    values = pa.array([[1, 2, 3], None, [4, 5, 6]], as_list(kind))
    for rows in (values, pa.chunked_array([values.slice(0, 1), values.slice(1)])):
        vectors, good = vectors_of_values(rows, "|", LENGTH, where="x")
        assert vectors.to_pylist() == [[1, 2, 3], [0, 0, 0], [4, 5, 6]]
        assert good.tolist() == [True, False, True]


@given(
    st.lists(st.lists(st.sampled_from(["1", " 2.5 ", "-1e-3", "", "x", "nan", "0x1"]), max_size=4))
)
def test_text_is_checked_as_a_slow_reference_checks_it(rows):
    texts = ["|".join(row) or None for row in rows]
    vectors, good = vectors_of_values(pa.array(texts, pa.string()), "|", LENGTH, where="x")
    numbers = {"1": 1.0, " 2.5 ": 2.5, "-1e-3": float(np.float32(-1e-3))}
    for row, text, vector, right in zip(rows, texts, vectors.to_pylist(), good):
        expected = len(row) == LENGTH and all(each in numbers for each in row)
        assert right == expected == (not vector_damage("x", text, "|", LENGTH))
        assert vector == ([numbers[each] for each in row] if expected else [0.0] * LENGTH)


DAMAGES = [
    (None, "text is missing; a vector needs its 3 numbers"),
    ([1.0, 2.0], "text has 2 numbers, not 3"),
    ([1.0, float("nan"), 2.0], r"text\[1\] is (.*nan.*|missing), not a finite number"),
    ([1.0, 2.0, float("inf")], r"text\[2\] is .*inf.*, not a finite number"),
]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(("value", "reason"), DAMAGES)
def test_a_damaged_vector_is_damaged(tmp_path, kind, value, reason):
    rows = frame()
    rows.at[3, "text"] = value
    file = tmp_path / f"log.{kind}"
    if kind == "csv":
        texts = ["" if v is None else "|".join(map(str, v)) for v in rows.text]
        rows.assign(text=texts).to_csv(file, index=False)
    else:
        rows.to_parquet(file)
    settings = COLUMNS | {"vector": ("text",), "split": "time", "max_bad_fraction": 0.1}
    data = prepare(PrepareSettings(files=(file,), out=tmp_path / "DATA", **settings))
    written = rows_of(data)
    kept = frame().drop(index=3)
    np.testing.assert_array_equal(np.stack(written.text), np.stack(kept.text))
    line = (data.path / "damaged" / "lines.tsv").read_text(encoding="utf-8").split("\t")
    assert line[:2] == [str(file), "5" if kind == "csv" else "4"]
    assert pd.Series([line[2]]).str.fullmatch(reason).all(), line


def test_rows_of_another_length_than_the_first_are_too_many(tmp_path):
    rows = frame()
    rows.at[0, "text"] = np.ones(2, "f4")
    with pytest.raises(InputError, match="text has 3 numbers, not 2"):
        prepared(tmp_path, rows, kind="parquet")
    assert not (tmp_path / "DATA").exists()


def test_a_column_without_vectors_is_refused(tmp_path):
    nothing = frame()
    nothing["text"] = None
    with pytest.raises(InputError, match="column 'text' has no vector in its first 40 rows"):
        prepared(tmp_path, nothing, kind="parquet")
    with pytest.raises(InputError, match="column 'age' has no vector in its first 40 rows"):
        prepared(tmp_path, frame(), kind="parquet", vector=("age",), continuous=())
    words = frame().assign(text=[["a", "b"]] * 40)
    with pytest.raises(InputError, match="no vector in its first 40 rows"):
        prepared(tmp_path, words, kind="parquet")
    with pytest.raises(InputError, match="no column 'none'"):
        prepared(tmp_path, frame(), vector=("none",))


def test_a_separator_and_columns_of_text_are_given(tmp_path):
    rows = frame().assign(text=as_text(frame().text, " "))
    rows.to_csv(tmp_path / "log.csv", index=False, header=False)
    settings = COLUMNS | {"vector": ("text",), "vector_separator": " ", "split": "time"}
    names = ("y", "user", "age", "text")
    data = prepare(
        PrepareSettings(
            files=(tmp_path / "log.csv",), out=tmp_path / "DATA", columns=names, **settings
        )
    )
    np.testing.assert_array_equal(np.stack(rows_of(data).text), np.stack(frame().text))


def test_new_rows_need_vectors_of_the_same_length(tmp_path):
    data = prepared(tmp_path, frame())
    settings = {"kind": "table", "like": data.path}
    new = prepare(PrepareSettings(files=(tmp_path / "log.csv",), out=tmp_path / "NEW", **settings))
    np.testing.assert_array_equal(np.stack(rows_of(new).text), np.stack(frame().text))
    assert new.vocabulary == data.vocabulary
    longer = frame().assign(text=[np.ones(4)] * 40)
    longer.assign(text=as_text(longer.text)).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(InputError, match="text has 4 numbers, not 3"):
        prepare(PrepareSettings(files=(tmp_path / "new.csv",), out=tmp_path / "N", **settings))
    with pytest.raises(InputError, match=r"`vector`: .* has other columns; omit `vector`"):
        other = settings | {"vector": ("age",)}
        prepare(PrepareSettings(files=(tmp_path / "log.csv",), out=tmp_path / "N", **other))


def test_a_folder_without_vectors_is_described_as_before(tmp_path):
    data = prepared(tmp_path, frame(), vector=())
    described = json.loads((data.path / "dataset.json").read_text(encoding="utf-8"))
    for part in ("layout", "settings"):
        assert not [name for name in described[part] if "vector" in name]
    other = prepared(tmp_path, frame(), name="VECTORS")
    assert other.fingerprint != data.fingerprint and other.vocabulary != data.vocabulary


def test_read_log_reads_vectors(tmp_path):
    frame(3).to_parquet(tmp_path / "log.parquet")
    found = read_log(tmp_path / "log.parquet", LogFormat(**COLUMNS, vectors={"text": LENGTH}))
    np.testing.assert_array_equal(np.stack(found.text), np.stack(frame(3).text))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["criteo", "--vector", "text"], "for the kind table"),
        (["table", "--vector", "age"], "'age' is given twice"),
        (["table", "--vector-separator", " "], "--vector-separator has no effect without --vector"),
        (["table", "--vector", "text", "--vector-separator", ""], "--vector-separator is empty"),
        (
            ["table", "--vector", "text", "--hugectr"],
            "--hugectr writes no vectors, but column 'text' has some; omit it",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, capsys, words, message):
    frame().to_parquet(tmp_path / "log.parquet")
    kind, *options = words
    if kind == "table":
        options += ["--label", "y", "--categorical", "user", "--continuous", "age"]
    out = ["--out", str(tmp_path / "DATA")]
    assert main(["prepare", kind, str(tmp_path / "log.parquet"), *out, *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "DATA").exists()


def test_a_gpu_does_not_prepare_vectors(tmp_path, monkeypatch):
    module = sys.modules["cowclip_merlin.workflows.prepare"]  # the function hides its module
    monkeypatch.setattr(module, "use_gpu", lambda device: True)
    with pytest.raises(InputError, match="column 'text' has vectors, which a GPU does not prepare"):
        prepared(tmp_path, frame())
