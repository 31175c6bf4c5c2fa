"""Weights of rows: what `prepare` reads, writes and refuses."""

import json

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.columns import Columns
from cowclip_merlin.workflows import LogFormat, PreparedData, PrepareSettings, prepare, read_log

COLUMNS = {"kind": "table", "label": "y", "categorical": ("user",), "continuous": ("age",)}


def frame(rows=40, weight=None):
    numbers = np.arange(rows)
    weight = numbers % 5 * 0.5 if weight is None else weight
    columns = {"y": numbers % 2, "user": numbers % 7, "age": numbers / rows, "w": weight}
    return pd.DataFrame(columns)


def prepared(folder, rows, *, kind="csv", name="DATA", **settings):
    file = folder / f"log.{kind}"
    rows.to_parquet(file) if kind == "parquet" else rows.to_csv(file, index=False)
    settings = COLUMNS | {"weight": "w", "split": "time"} | settings
    return prepare(PrepareSettings(files=(file,), out=folder / name, **settings))


def rows_of(data):
    files = [file for split in ("train", "test") for file in data.files(split)]
    return pd.concat(map(pd.read_parquet, files))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_weights_are_written_as_they_are(tmp_path, kind):
    data = prepared(tmp_path, frame(), kind=kind)
    written = rows_of(data)
    assert written.w.dtype == np.float32
    assert written.w.tolist() == frame().w.tolist()
    assert PreparedData.load(data.path).log_format.weight == "w"
    assert [tag.value for tag in data.schema["w"].tags] == []
    assert Columns.from_schema(data.schema).continuous == ("age",)


BAD = {
    "text": ["", "-1", "nan", "inf", "1e300", "much"],
    "numbers": [None, -1.0, float("nan"), float("inf"), 1e300],
}


@pytest.mark.parametrize("value", BAD["text"])
def test_a_line_without_a_weight_is_damaged(tmp_path, value):
    rows = frame().astype({"w": object})
    rows.loc[3, "w"] = value
    data = prepared(tmp_path, rows, max_bad_fraction=0.1)
    assert len(rows_of(data)) == 39
    file, line, reason, _ = (
        (data.path / "damaged" / "lines.tsv").read_text().rstrip("\n").split("\t")
    )
    assert (file, line) == (str(tmp_path / "log.csv"), "5")
    assert reason == f"w is {value!r}, no weight; give a finite number of 0 or more"


@pytest.mark.parametrize("value", BAD["numbers"])
def test_a_row_of_parquet_without_a_weight_is_damaged(tmp_path, value):
    rows = frame()
    rows.loc[3, "w"] = value
    data = prepared(tmp_path, rows, kind="parquet", max_bad_fraction=0.1)
    assert len(rows_of(data)) == 39
    assert "w is " in (data.path / "damaged" / "lines.tsv").read_text()


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_needs_a_weight_above_0(tmp_path, split):
    test = np.arange(40) >= 36
    rows = frame(weight=np.where(test == (split == "test"), 0.0, 1.0))
    with pytest.raises(InputError, match=f"all weights of the {split} rows are 0, in column 'w'"):
        prepared(tmp_path, rows)
    assert not (tmp_path / "DATA").exists()


def test_new_rows_need_the_same_column(tmp_path):
    data = prepared(tmp_path, frame())
    settings = {"kind": "table", "like": data.path}
    new = prepare(PrepareSettings(files=(tmp_path / "log.csv",), out=tmp_path / "NEW", **settings))
    assert rows_of(new).w.tolist() == frame().w.tolist()
    frame().drop(columns="w").to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(InputError, match="no column 'w' in the header"):
        prepare(PrepareSettings(files=(tmp_path / "new.csv",), out=tmp_path / "N", **settings))
    with pytest.raises(InputError, match=r"`weight`: .* has other columns; omit `weight`"):
        other = settings | {"weight": "age"}
        prepare(PrepareSettings(files=(tmp_path / "log.csv",), out=tmp_path / "N", **other))


def test_a_folder_without_weights_is_described_as_before(tmp_path):
    data = prepared(tmp_path, frame(), weight=None)
    described = json.loads((data.path / "dataset.json").read_text())
    assert "weight" not in described["layout"] and "weight" not in described["settings"]
    assert list(rows_of(data)) == ["user", "age", "y"]
    other = prepared(tmp_path, frame(), name="WEIGHTED")
    assert other.fingerprint != data.fingerprint and other.vocabulary == data.vocabulary


def test_read_log_reads_weights_with_labels(tmp_path):
    frame(3).to_csv(tmp_path / "log.csv", index=False)
    log_format = LogFormat(**COLUMNS, weight="w")
    assert list(read_log(tmp_path / "log.csv", log_format)) == ["user", "age"]
    found = read_log(tmp_path / "log.csv", log_format, labels=True)
    assert found.w.tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["criteo", "--weight", "w"], "for the kind table"),
        (["table", "--label", "y", "--categorical", "user", "--weight", "y"], "'y' is given twice"),
        (
            ["table", "--label", "y", "--categorical", "user", "--weight", "w", "--hugectr"],
            "--hugectr writes no weights, but column 'w' has some; omit it",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, capsys, words, message):
    frame().to_csv(tmp_path / "log.csv", index=False)
    kind, *options = words
    out = ["--out", str(tmp_path / "DATA")]
    assert main(["prepare", kind, str(tmp_path / "log.csv"), *out, *options]) == 2
    assert message in capsys.readouterr().err
