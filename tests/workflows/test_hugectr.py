"""What `--hugectr` writes, read by the rules of HugeCTR's own reader."""

import json

import numpy as np
import pytest
from hugectr_reader import open_source
from pandas_reference import CATEGORIES, NUMBERS, make, read

from cowclip_merlin.loading import read_columns


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
