"""Splits of the user's own: files of validation and test rows beside those of train rows."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import evaluate_run, train
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare, read_counts

COLUMNS = {"kind": "table", "label": "y", "categorical": ("a", "b"), "continuous": ("x",)}
WORDS = ["--label", "y", "--categorical", "a,b", "--continuous", "x"]
SMALL = {"model": "deepfm", "batch_size": 32, "base_batch_size": 32, "mlp": (4,), "epochs": 1}
ROWS = {"train": 300, "validation": 70, "test": 110}


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """`train.csv`, `validation.csv` and `test.csv`, with ids of their own; their rows."""
    monkeypatch.chdir(tmp_path)
    rng, rows = np.random.default_rng(4), {}
    for split, n in ROWS.items():
        ids = [f"{rng.integers(9) + (split == 'validation')}" for _ in range(n)]
        each = [
            (int(rng.random() < 0.4), a, f"{split}{i % 3}", float(i)) for i, a in enumerate(ids)
        ]
        rows[split] = each
        write(f"{split}.csv", each)
    return rows


def write(name, rows, head="y,a,b,x"):
    lines = [head, *(",".join(map(str, row)) for row in rows)]
    with open(name, "w", encoding="utf-8") as file:
        file.write("\n".join([*lines, ""]))


def settings(**given):
    files = {"validation": ("validation.csv",), "test": ("test.csv",)}
    return PrepareSettings(**{"files": ("train.csv",), "out": "DATA", **COLUMNS, **files, **given})


def labels(data, split):
    return [y for file in data.files(split) for y in pq.read_table(file)["y"].to_pylist()]


def test_ids_counts_and_ranges_are_those_of_the_train_rows(logs):
    data = prepare(settings())
    assert data.rows == ROWS
    for split, rows in logs.items():
        assert labels(data, split) == [row[0] for row in rows]
    counts = {row["value"]: row["count"] for row in read_counts(data, "a").to_pylist()}
    expected = Counter(row[1] for row in logs["train"])
    assert {value: counts[value] for value in expected} == expected
    assert (data.statistics.minimum["x"], data.statistics.maximum["x"]) == (0, 299)
    for split in ("validation", "test"):  # column b has values of its own in each file
        assert set(pq.read_table(data.files(split)[0])["b"].to_pylist()) == {2}
    whole = prepare(settings(out="ALL", recipe=settings().recipe.__class__(fit_on="all")))
    assert whole.fitted_rows == sum(ROWS.values())
    assert whole.cardinalities["b"] == 3 + 9


def test_the_train_rows_are_split_as_without_validation_rows(logs):
    alone = prepare(settings(validation=(), test=(), out="ALONE"))
    beside = prepare(settings(test=()))
    assert beside.rows == {**alone.rows, "validation": 70} and "validation" not in alone.rows
    assert all(labels(alone, split) == labels(beside, split) for split in ("train", "test"))
    by_time = prepare(settings(test=(), split="time", test_fraction=0.1, out="TIME"))
    assert labels(by_time, "test") == [row[0] for row in logs["train"][-30:]]
    assert prepare(settings(validation=(), out="TWO")).rows == {"train": 300, "test": 110}


def test_which_file_is_which_decides_the_fingerprint(logs):
    folders = [
        prepare(settings(**given))
        for given in (
            {"out": "A"},
            {"out": "B", "validation": ("test.csv",), "test": ("validation.csv",)},
            {"out": "C", "files": ("train.csv", "validation.csv"), "validation": ()},
        )
    ]
    assert len({data.fingerprint for data in folders}) == 3
    again = prepare(settings(out="D"))
    assert again.fingerprint == folders[0].fingerprint


def test_the_files_may_be_parquet_and_patterns(logs):
    rows = logs["validation"]
    names = ("y", "a", "b", "x")
    table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
    pq.write_table(table.slice(0, 30), "part_2.parquet")
    pq.write_table(table.slice(30), "part_10.parquet")
    data = prepare(settings(validation=("part_*.parquet",)))
    assert labels(data, "validation") == [row[0] for row in rows]


def test_extend_hugectr_and_summary_know_the_rows(logs, capsys):
    prepare(settings(hugectr=True))
    assert (PreparedData.load("DATA").path / "validation/_file_list.txt").is_file()
    page = (PreparedData.load("DATA").path / "summary.md").read_text()
    assert "rows: 480 (300 train, 110 test, 70 validation)" in page
    more = PrepareSettings(
        files=("test.csv",), validation=("validation.csv",), out="MORE", kind="table", extend="DATA"
    )
    capsys.readouterr()
    assert prepare(more).rows["validation"] == 70
    assert "+ 70 validation + 0 damaged" in capsys.readouterr().out


@pytest.mark.runs
def test_a_run_scores_the_validation_rows_and_evaluate_all_three(logs):
    data = prepare(settings())
    run = RunSettings(**SMALL, validation_split="given")
    (row,) = train("DATA", run, out="RUN")
    assert row["validation_auc"] == evaluate_run("RUN", "DATA", split="validation").auc
    assert {evaluate_run("RUN", "DATA", split=split).rows for split in ROWS} == {*ROWS.values()}
    # The same weights as without: no validation row trains.
    write("train.csv", logs["train"])
    prepare(settings(validation=(), out="WITHOUT"))
    (other,) = train("WITHOUT", RunSettings(**SMALL), out="OTHER")
    assert other["train_loss"] == row["train_loss"]
    assert other["test_auc"] == evaluate_run("RUN", data.path).auc


@pytest.mark.runs
def test_the_command_holds_them_out_unless_told_otherwise(logs, capsys):
    words = ["prepare", "table", "train.csv", "--validation", "validation.csv", "--test"]
    assert main([*words, "test.csv", "--out", "DATA", *WORDS]) == 0
    small = ["--model", "deepfm", "--batch-size", "32", "--mlp", "4", "--epochs", "2"]
    for name, more, split in (
        ("GIVEN", ["--early-stopping", "1"], "given"),
        ("NONE", ["--validation-fraction", "0"], "random"),
        ("SHARE", ["--validation-fraction", "0.2"], "random"),
    ):
        assert main(["train", "DATA", "--out", name, *small, *more]) == 0
        with open(f"{name}/config.json", encoding="utf-8") as file:
            assert json.load(file)["settings"]["validation_split"] == split
        with open(f"{name}/train.log", encoding="utf-8") as file:
            said = file.read()
        held = {"GIVEN": "70 validation", "NONE": "110 test", "SHARE": "60 validation"}[name]
        assert f"{held} rows" in said
    capsys.readouterr()
    assert main(["train", "DATA", "--out", "BAD", "--validation-split", "given", *small,
                 "--validation-fraction", "0.1"]) == 2  # fmt: skip
    assert "omit one" in capsys.readouterr().err


BAD = [
    ({"validation": ("no_label.csv",)}, "no_label.csv: no column 'y'"),
    ({"test": ("other.csv",)}, "other.csv: no column 'a'"),
    ({"validation": ("empty.csv",)}, "empty.csv: no validation rows"),
    ({"test": ("empty.csv",)}, "empty.csv: no test rows"),
    ({"test": ("missing.csv",)}, "missing.csv: no such file"),
    ({"test": ("train.csv",)}, "train.csv: occurs twice"),
    ({"validation": ("link.csv",)}, "link.csv: is the same file as train.csv"),
    ({"test": ("validation.csv",)}, "validation.csv: occurs twice"),
    ({"test_fraction": 0.2}, "`test` gives the test rows"),
    ({"split": "time"}, "`test` gives the test rows"),
    ({"seed": 3}, "`test` gives the test rows"),
]


def test_a_run_needs_validation_rows_with_both_labels(logs, tmp_path):
    prepare(settings(validation=(), out="NONE"))
    write("ones.csv", [(1, *row[1:]) for row in logs["validation"]])
    prepare(settings(validation=("ones.csv",), out="ONES"))
    run = RunSettings(**SMALL, validation_split="given")
    for folder, said in (("NONE", "has no validation rows; "), ("ONES", "all 70 validation rows")):
        with pytest.raises(InputError, match=said):
            train(folder, run, out=tmp_path / "RUN")
    with pytest.raises(InputError, match="omit one"):
        RunSettings(**SMALL, validation_split="given", validation_fraction=0.1)
