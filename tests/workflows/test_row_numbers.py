"""`row` of a file of predictions is the row of the log, whatever was damaged or split."""

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, evaluate_run, train
from cowclip_merlin.workflows import PrepareSettings, id_to_value, prepare
from cowclip_merlin.workflows.prepared.row_numbers import row_numbers

ROWS = 600
DAMAGED = (0, 7, 8, 300, 599)
COLUMNS = {"kind": "table", "label": "y", "categorical": ("n",), "max_bad_fraction": 0.1}


def write(file, rows=ROWS, damaged=DAMAGED):
    """A log whose column `n` has the row, from 0; damaged rows have no label."""
    some = np.random.default_rng(rows)
    labels = np.where(np.isin(np.arange(rows), damaged), "oops", some.integers(0, 2, rows))
    frame = pd.DataFrame({"y": labels, "n": [f"r{i}" for i in range(rows)]})
    frame["t"] = pd.Timestamp("2024-03-01") + pd.to_timedelta(some.permutation(rows), "h")
    frame.to_csv(file, index=False)
    return file


def rows_of_values(data, split):
    """The rows of the log that the values of `n` tell."""
    values = id_to_value(data, "n")
    ids = pd.concat(map(pd.read_parquet, data.files(split)))["n"]
    return [int(values[i].removeprefix("r")) for i in ids]


@pytest.mark.parametrize(
    "given",
    [{}, {"split": "time"}, {"split": "time", "time": "t"}, {"partition_mb": 0.002}],
    ids=["random", "last", "by a column", "small parts"],
)
def test_the_rows_are_those_of_the_log(tmp_path, given):
    file, out = write(tmp_path / "log.csv"), tmp_path / "DATA"
    data = prepare(PrepareSettings(files=(file,), out=out, **COLUMNS, **given))
    found = {split: row_numbers(data, split).tolist() for split in data.rows}
    assert found["train"] == rows_of_values(data, "train")
    every = sorted(found["train"] + found["test"])
    assert every == [x for x in range(ROWS) if x not in DAMAGED]
    assert {split: len(rows) for split, rows in found.items()} == data.rows and found["test"]


def test_files_of_a_split_count_from_their_first(tmp_path):
    files = [write(tmp_path / f"{n}.csv", rows=n, damaged=(2,)) for n in (50, 40, 30, 20)]
    given = {"files": tuple(files[:2]), "validation": (files[2],), "test": (files[3],)}
    data = prepare(PrepareSettings(out=tmp_path / "DATA", **COLUMNS, **given))
    wanted = {"train": [*range(50), *range(50, 90)], "validation": range(30), "test": range(20)}
    damaged = {"train": (2, 52)}
    for split, rows in wanted.items():
        left = [x for x in rows if x not in damaged.get(split, (2,))]
        assert row_numbers(data, split).tolist() == left


def test_a_damaged_file_is_refused_and_an_older_folder_has_none(tmp_path):
    data = prepare(
        PrepareSettings(files=(write(tmp_path / "l.csv"),), out=tmp_path / "D", **COLUMNS)
    )
    file = data.path / "rows/test.parquet"
    content = bytearray(file.read_bytes())
    content[40] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"test\.parquet: damaged parquet"):
        row_numbers(data, "test")
    file.unlink()
    assert row_numbers(data, "test") is None


@pytest.mark.runs
def test_evaluate_writes_them_with_the_columns_to_keep(tmp_path, caplog, capsys):
    some = np.random.default_rng(0)
    frame = pd.DataFrame({"y": some.integers(0, 2, 400).astype(str), "a": some.integers(0, 9, 400)})
    frame["tags"] = [["", "x", "x|y", "z"][i % 4] for i in range(400)]
    frame.loc[[3, 5], "y"] = "?"
    frame.to_csv(tmp_path / "log.csv", index=False)
    columns = {"label": "y", "categorical": ("a",), "multi": ("tags",), "max_bad_fraction": 0.1}
    files = {"files": (tmp_path / "log.csv",), "out": tmp_path / "DATA"}
    data = prepare(PrepareSettings(kind="table", **files, **columns))
    settings = RunSettings(model="dcn", batch_size=64, epochs=1, mlp=(4,))
    train(data.path, settings, out=tmp_path / "RUN")
    words = ["evaluate", str(tmp_path / "RUN"), str(data.path), "--predictions"]
    assert main([*words, str(tmp_path / "p.parquet"), "--keep", "a,tags"]) == 0
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert [*found] == ["row", "a", "tags", "label", "probability"]
    log = frame.iloc[found["row"]].reset_index(drop=True)
    assert len(found) == data.rows["test"] and found["row"].is_monotonic_increasing
    assert found["a"].tolist() == log["a"].astype(str).tolist()
    assert ["|".join(each) for each in found["tags"]] == log["tags"].tolist()
    assert found["label"].tolist() == log["y"].astype(int).tolist()
    assert main([*words, str(tmp_path / "p.csv"), "--keep", "a"]) == 0
    assert (pd.read_csv(tmp_path / "p.csv")["row"] == found["row"]).all()
    assert main([*words, str(tmp_path / "q.csv"), "--keep", "tags"]) == 2
    assert "column 'tags' is list<" in capsys.readouterr().err
    (data.path / "rows/test.parquet").unlink()
    evaluate_run(tmp_path / "RUN", data.path, predictions=tmp_path / "o.csv")
    assert (pd.read_csv(tmp_path / "o.csv")["row"] == np.arange(len(found))).all()
    assert "does not know the rows of its log" in caplog.text
