"""Prepare against slow, obvious pandas: splits, ids, counts, numbers, quarantine, repetition."""

import csv
import gzip
import json
import re
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas_reference import CATEGORIES, NUMBERS, assert_same, make, raw_frame, read, reference_ids

import cowclip_merlin as cc
from cowclip_merlin.recipe import rule_words
from cowclip_merlin.system.checksums import checksum
from cowclip_merlin.workflows import PreparedData, PrepareSettings, Recipe, prepare
from cowclip_merlin.workflows.ingest import Split, is_test
from cowclip_merlin.workflows.raw.file_formats import COMPRESSED_SUFFIXES


@pytest.mark.one_case
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"recipe": Recipe(freq_threshold=3, log=True)},
        {"split": "time"},
        {"recipe": Recipe(freq_threshold=2, fit_on="all")},
    ],
)
def test_criteo_against_pandas(log, tmp_path, settings):
    data = make(log, tmp_path / "data", partition_mb=0.2, **settings)
    frame = raw_frame(log)
    position = np.arange(len(frame), dtype=np.uint64)
    fraction = 1 / 7 if settings.get("split") == "time" else 0.1
    split = Split(how=settings.get("split", "random"), test_fraction=fraction)
    test = is_test(position, split, total=len(frame))
    raw = {"train": frame[~test].reset_index(), "test": frame[test].reset_index()}
    recipe = settings.get("recipe", Recipe())
    fitted = frame if recipe.fit_on == "all" else raw["train"]
    assert data.fitted_rows == len(fitted)
    assert data.rows == {name: len(f) for name, f in raw.items()}
    assert len(data.files("train")) > 1
    for name in raw:
        got = read(data, name)
        assert got.label.tolist() == raw[name].label.tolist()
        for column in CATEGORIES:
            ids, _ = reference_ids(fitted, column, recipe.freq_threshold)
            expected = [ids.get(v, 2) if isinstance(v, str) else 1 for v in raw[name][column]]
            assert got[column].tolist() == expected, column
        for column in NUMBERS:
            x = {n: f[column].fillna(0).to_numpy(float) for n, f in raw.items()}
            if recipe.log:
                x = {n: np.log1p(np.maximum(v, 0)) for n, v in x.items()}
            learned = np.concatenate([v for n, v in x.items() if n in recipe.fitted_splits])
            low, high = learned.min(), learned.max()
            expected = (x[name] - low) / (high - low)
            np.testing.assert_allclose(got[column], expected, rtol=1e-6, atol=1e-7)
            assert got[column].dtype == np.float32


def test_a_prepared_folder_is_shown_in_a_line(data):
    prepared = PreparedData.load(data)
    path, rows, clicks = prepared.path, prepared.rows, prepared.clicks
    assert repr(prepared) == f"PreparedData(path={path!r}, rows={rows}, clicks={clicks})"


def test_prepare_knows_what_it_wrote_without_reading_it(log, tmp_path):
    data = make(log, tmp_path / "data")
    loaded = PreparedData.load(data.path)
    assert (data, data.description) == (loaded, loaded.description)
    words = rule_words(loaded)
    shutil.rmtree(data.path)
    assert rule_words(data) == words != ""


def test_counts_and_both_ways_of_reading_them(log, data):
    prepared = PreparedData.load(data)
    frame = raw_frame(log)
    test = is_test(np.arange(len(frame), dtype=np.uint64), Split(test_fraction=0.1))
    train = frame[~test]
    for field in ("C1", "C3", "C20"):
        ids, counts = reference_ids(train, field)
        table = cc.workflows.read_counts(prepared, field).to_pydict()
        assert table["id"] == list(range(prepared.cardinalities[field]))
        assert table["count"][:3] == [0, int(train[field].isna().sum()), 0]
        assert dict(zip(table["value"][3:], table["count"][3:], strict=True)) == counts
        assert cc.workflows.value_to_id(prepared, field) == ids
        values = cc.workflows.id_to_value(prepared, field)
        assert values[:3] == [None] * 3 and {v: i for i, v in enumerate(values) if v} == ids


@pytest.mark.thorough
def test_the_way_in_does_not_matter(log, data, tmp_path):
    """Compressed, in two files, as parquet, or in other partitions: the same output."""
    first = PreparedData.load(data)
    packed = tmp_path / "log.txt.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    lines = log.read_bytes().splitlines(keepends=True)
    halves = (tmp_path / "1.txt", tmp_path / "2.txt")
    halves[0].write_bytes(b"".join(lines[:1234]))
    halves[1].write_bytes(b"".join(lines[1234:]))
    raw_frame(log).to_parquet(tmp_path / "log.parquet")
    assert_same(first, make(packed, tmp_path / "gz"))
    assert_same(first, make(log, tmp_path / "small", partition_mb=0.1))
    assert_same(first, make(tmp_path / "log.parquet", tmp_path / "parquet"))
    assert_same(first, prepare(PrepareSettings(files=halves, out=tmp_path / "halves")))


def test_like_repeats_the_transform_without_a_pickle(log, data, tmp_path):
    original = PreparedData.load(data)
    for file in data.rglob("*"):
        if file.is_file():
            assert not re.match(rb"\x80[\x02-\x05]", file.read_bytes()[:2]), file
    again = prepare(PrepareSettings(files=(log,), out=tmp_path / "again", like=data))
    assert again.rows == {"train": 0, "test": sum(original.rows.values())}
    frame = raw_frame(log)
    test = is_test(np.arange(len(frame), dtype=np.uint64), Split(test_fraction=0.1))
    both = read(again, "test")
    pd.testing.assert_frame_equal(both[test].reset_index(drop=True), read(original, "test"))
    pd.testing.assert_frame_equal(both[~test].reset_index(drop=True), read(original, "train"))
    assert again.cardinalities == original.cardinalities
    assert again.fitted_rows == original.rows["train"]
    tables = [
        [line for line in (each.path / "summary.md").read_text().splitlines() if line[:1] == "|"]
        for each in (original, again)
    ]
    assert tables[0] == tables[1] and len(tables[0]) == 29  # what is in a batch is the same


def test_settings_may_be_text_and_lists(tmp_path):
    settings = PrepareSettings(files=["a.csv"], out="D", kind="table", label="y", like="BASE",
                               categorical=["a"], continuous=["x"])  # fmt: skip
    assert settings.like == Path("BASE") and settings.files == (Path("a.csv"),)
    assert (settings.categorical, settings.continuous) == (("a",), ("x",))


def test_a_loaded_workflow_transforms_as_the_fitted_one(data, log):
    from merlin.io import Dataset

    prepared = PreparedData.load(data)
    frame = raw_frame(log).astype(dict.fromkeys(NUMBERS, float))
    test = is_test(np.arange(len(frame), dtype=np.uint64), Split(test_fraction=0.1))
    rows = frame[test].reset_index(drop=True)
    got = prepared.workflow().transform(Dataset(rows, cpu=True)).compute()
    expected = read(prepared, "test")
    for column in expected:
        np.testing.assert_array_equal(got[column], expected[column])


def test_a_workflow_from_python(log, tmp_path):
    from merlin.io import Dataset

    frame = raw_frame(log).astype(dict.fromkeys(NUMBERS, float))
    workflow = cc.workflows.criteo(out_path=tmp_path)
    out = workflow.fit_transform(Dataset(frame, cpu=True)).compute()
    _, counts = reference_ids(frame, "C2")
    ids = dict(zip(frame.C2, out.C2, strict=True))
    assert sorted(ids.values()) == list(range(3, 3 + len(counts)))
    falling = [counts[v] for v in sorted(ids, key=ids.get)]
    assert falling == sorted(falling, reverse=True)
    assert out.C2.tolist() == [ids[v] for v in frame.C2]
    assert out.I2.between(0, 1).all()


@pytest.mark.system
def test_a_cluster_forgets_the_ids_of_a_folder_that_was_prepared_again(tmp_path):
    from distributed import LocalCluster

    def table(name, values):
        file = tmp_path / name
        file.write_text("\n".join(["y,a", *(f"{i % 2},{v}" for i, v in enumerate(values)), ""]))
        return file

    usual = {"kind": "table", "label": "y", "categorical": ("a",)}
    like = {"kind": "table", "like": tmp_path / "base"}
    new = table("new.csv", "pqr" * 60)
    make(table("first.csv", "pppqqr" * 30), tmp_path / "base", **usual)
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as workers:
        make(new, tmp_path / "before", scheduler=workers.scheduler_address, **like)
        make(table("second.csv", "rrrqqs" * 30), tmp_path / "base", overwrite=True, **usual)
        after = make(new, tmp_path / "after", scheduler=workers.scheduler_address, **like)
    here = make(new, tmp_path / "here", **like)
    assert read(after, "test").a.tolist() == read(here, "test").a.tolist()


def test_the_fingerprint_holds_the_columns(tmp_path):
    """Runs are told apart by it: the same log with other columns is other data."""
    log = tmp_path / "t.csv"
    rows = [f"{i % 2},{i % 3 % 2},{i % 3},k,{i}" for i in range(200)]
    log.write_text("\n".join(["y,z,a,b,x", *rows, ""]))
    usual = {"kind": "table", "label": "y", "categorical": ("a", "b"), "continuous": ("x",)}
    ways = [{}, {"label": "z"}, {"categorical": ("a",)}, {"categorical": ("b", "a")},
            {"continuous": ()}]  # fmt: skip
    made = [make(log, tmp_path / f"{i}", **(usual | way)) for i, way in enumerate(ways)]
    assert len({data.fingerprint for data in made}) == len(ways)
    assert make(log, tmp_path / "again", **usual).fingerprint == made[0].fingerprint
    new = [make(log, tmp_path / f"like{i}", kind="table", like=made[i].path) for i in (0, 2)]
    assert new[0].fingerprint != new[1].fingerprint


def test_an_unknown_value_is_out_of_vocabulary(prepared, tmp_path):
    rows = [f"{i % 2},v{i % 4},k,{i}" for i in range(200)]
    data = prepared("y,a,b,x\n" + "\n".join(rows) + "\n")
    new = tmp_path / "new.csv"
    new.write_text("y,a,b,x\n1,never seen,,5\n0,v1,k,\n")
    got = read(
        prepare(PrepareSettings(files=(new,), out=tmp_path / "new", kind="table", like=data.path)),
        "test",
    )
    assert (got.a[0], got.b[0]) == (2, 1)
    assert got.a[1] >= 3 and got.b[1] == 3 and got.x[1] == pytest.approx(0, abs=0.01)


def test_a_constant_column_is_no_nan(prepared):
    text = "y,a,b,x\n" + "".join(f"{i % 2},{i % 3},{i % 5},0\n" for i in range(100))
    data = prepared(text)
    assert set(read(data, "train").x) == {0.0}


def test_the_folder_describes_itself(data):
    value = json.loads((data / "dataset.json").read_text())
    assert value["settings"]["split"] == {"how": "random", "test_fraction": 0.1, "seed": 1234}
    assert len(value["fingerprint"]) == 64 and value["input"][0]["name"] == "log.txt"
    assert "nvtabular" in value["versions"]
    from merlin.io import Dataset

    schema = Dataset(str(data / "train"), engine="parquet", cpu=True).schema
    assert schema["C1"].int_domain.max + 1 == value["statistics"]["cardinalities"]["C1"]
    figure = (data / "figures" / "ids_by_frequency.svg").read_text()
    assert figure.startswith("<?xml") and figure.count("<path") > 26
    summary = (data / "summary.md").read_text()
    assert "| C26 |" in summary and "click rate: " in summary
    # Nothing in it names a path of the machine it was made on.
    for file in (f for f in data.rglob("*") if f.suffix in (".json", ".md", ".svg", ".txt")):
        assert str(data.parent) not in file.read_text(), file


def test_summary_numbers(prepared):
    text = "y,a,b,x\n" + "".join(f"{int(i < 250)},{i},{i % 2},{i}\n" for i in range(1000))
    data = prepared(text, test_fraction=0.001)
    page = (data.path / "summary.md").read_text()
    train = data.rows["train"]
    assert "click rate: 25.00%" in page
    assert f"| a | {train:,} | 100.0% | {train if train < 1024 else 0}" in page
    assert "| b | 2 | 0.0% | 2 |" in page


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("file", "settings", "rows"),
    [
        ("criteo_8k.txt.gz", {"kind": "criteo"}, 8000),
        ("avazu_9k.csv.gz", {"kind": "avazu"}, 8999),
        ("frappe_58k.csv.gz", {"kind": "table", "label": "label"}, 57722),
    ],
)
def test_real_logs(real, tmp_path, file, settings, rows):
    with gzip.open(real / file, "rt") as stream:
        header = next(csv.reader(stream))
    if settings["kind"] == "table":
        settings = settings | {"categorical": tuple(c for c in header if c != "label")}
    data = make(real / file, tmp_path / "data", **settings)
    assert sum(data.rows.values()) == rows and data.description["damaged"] == 0
    for split in ("train", "test"):
        frame = read(data, split)
        assert len(frame) == data.rows[split]
        for column, size in data.cardinalities.items():
            assert frame[column].between(1, size - 1).all()
        assert np.isfinite(frame[list(data.continuous)].to_numpy()).all()


@pytest.mark.parametrize("end", ["csv", "csv.gz", "csv.bz2", "csv.zst", "csv.lz4", "parquet"])
def test_the_files_that_were_read_are_described(tmp_path, end):
    """Their hashes, and those of what is written, are taken while they are read and written."""
    file, frame = tmp_path / f"log.{end}", pd.DataFrame({"y": [0, 1] * 99, "a": range(198)})
    if end == "parquet":
        frame.to_parquet(file)
    else:
        kind = COMPRESSED_SUFFIXES.get(file.suffix)
        with pa.CompressedOutputStream(str(file), kind) if kind else file.open("wb") as stream:
            stream.write(frame.to_csv(index=False).encode() + b"\n")
    columns = {"kind": "table", "label": "y", "categorical": ("a",), "partition_mb": 0.001}
    data, made = make(file, tmp_path / "data", **columns), file.read_bytes()
    known = {"name": file.name, "bytes": len(made), "sha256": sha256(made).hexdigest()}
    assert data.description["input"] == [known]
    written = {f"{f.parent.name}/{f.name}" for f in data.path.glob("*/*.parquet")}
    assert data.checksums == {name: checksum(data.path / name) for name in written}
