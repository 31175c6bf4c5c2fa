"""What `--hugectr` writes, read by the rules of HugeCTR's own reader."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hugectr_reader import open_source
from pandas_reference import CATEGORIES, NUMBERS, make, read

from cowclip_merlin.loading import read_columns
from cowclip_merlin.workflows import PrepareSettings, prepare


@pytest.mark.one_case
@pytest.mark.parametrize("moved", [False, True])
def test_hugectr_opens_both_splits_from_the_folder(log, tmp_path, monkeypatch, moved):
    data = make(log, tmp_path / "data", hugectr=True, partition_mb=0.2)
    frames = {split: read(data, split) for split in ("train", "test")}
    assert len(data.files("train")) > 1
    folder = data.path.rename(tmp_path / "elsewhere") if moved else data.path
    monkeypatch.chdir(folder)
    known = json.loads((folder / "hugectr.json").read_text())
    assert known["slot_size_array"] == [data.cardinalities[c] for c in CATEGORIES]
    assert (known["label_name"], known["key_type"], known["label_dim"]) == ("label", "I64", 1)
    assert (known["dense_names"], known["dense_dim"]) == (NUMBERS, len(NUMBERS))
    for split, source in (("train", "train_source"), ("test", "eval_source")):
        found = open_source(known[source], known["slot_size_array"])
        frame = frames[split]
        assert list(found.keys) == known["slot_names"] == CATEGORIES
        assert (list(found.dense), list(found.labels)) == (NUMBERS, ["label"])
        for name, values in {**found.labels, **found.dense, **found.keys}.items():
            np.testing.assert_array_equal(values, frame[name])


def with_lists(folder, rows, hugectr=True, **settings):
    """A prepared folder of (user, tags, number, label), from files of 20 rows."""
    folder.mkdir()
    types = {"user": pa.string(), "tags": pa.list_(pa.string()), "x": pa.int64(), "y": pa.int64()}
    files = [folder / f"log{first:02}.parquet" for first in range(0, len(rows), 20)]
    for i, file in enumerate(files):
        columns = [list(column) for column in zip(*rows[20 * i : 20 * (i + 1)])]
        pq.write_table(pa.table(columns, schema=pa.schema(types)), file)
    columns = {"label": "y", "categorical": ("user",), "multi": ("tags",), "continuous": ("x",)}
    columns = {} if "like" in settings else columns
    return prepare(
        PrepareSettings(
            files=tuple(files),
            out=folder / "DATA",
            kind="table",
            hugectr=hugectr,
            **columns,
            **settings,
        )
    )


TAGGED = [  # in the first file, no row has tags
    (f"u{i % 3}", [] if i < 20 else [f"t{j}" for j in range(i % 4)] + ["t0"] * (i == 25), i, i % 2)
    for i in range(60)
]


def test_hugectr_opens_lists(tmp_path, monkeypatch):
    data = with_lists(tmp_path / "new", TAGGED, split="time", test_fraction=0.25)
    assert len(data.files("train")) > 1
    monkeypatch.chdir(data.path)
    known = json.loads(Path("hugectr.json").read_text(encoding="utf-8"))
    assert known["slot_names"] == ["user", "tags"] and known["nnz_per_slot"] == [1, 3]
    for split, source in (("train", "train_source"), ("test", "eval_source")):
        found = open_source(known[source], known["slot_size_array"], known["nnz_per_slot"])
        frame = read(data, split)
        keys, ends = found.keys["tags"]
        rows = [keys[a:b].tolist() for a, b in pairwise(ends)]
        assert rows == [ids.tolist() for ids in frame["tags"]]
        np.testing.assert_array_equal(found.keys["user"], frame["user"])
    with pytest.raises(ValueError, match="more keys in a row than 2"):
        open_source(known["train_source"], known["slot_size_array"], [1, 2])
    usual = with_lists(tmp_path / "usual", TAGGED, False, split="time", test_fraction=0.25)
    for one, two in zip(*(vars(read_columns(d, "train")).values() for d in (usual, data))):
        np.testing.assert_array_equal(one, two)


def test_the_longest_list_may_be_a_test_row(tmp_path):
    base = with_lists(tmp_path / "base", TAGGED)
    new = with_lists(tmp_path / "new", [("u1", ["t1"] * 9, 1, 0)], like=base.path)
    known = json.loads((new.path / "hugectr.json").read_text())
    assert known["train_source"] is None and known["nnz_per_slot"] == [1, 9]


@pytest.mark.thorough
def test_our_own_loader_reads_what_hugectr_reads(log, data, tmp_path):
    from cowclip_merlin.workflows import PreparedData

    usual, other = PreparedData.load(data), make(log, tmp_path / "data", hugectr=True)
    for one, two in zip(*(vars(read_columns(d, "train")).values() for d in (usual, other))):
        np.testing.assert_array_equal(one, two)


@pytest.mark.thorough
def test_a_split_without_rows_is_no_source(log, tmp_path):
    base = make(log, tmp_path / "base")
    made = make(log, tmp_path / "new", like=base.path, hugectr=True)
    known = json.loads((made.path / "hugectr.json").read_text())
    assert known["train_source"] is None and (made.path / known["eval_source"]).exists()
