"""Searches and experiments on data at addresses."""

import csv

import pytest

from cowclip_merlin.addresses import Address
from cowclip_merlin.cli import main
from cowclip_merlin.experiments.tuning.settings_file import read_settings

pytestmark = pytest.mark.runs

DATA, TUNED = "memory://a/DATA", "memory://a/TUNED"
MODEL = ["--model", "deepfm", "--batch-size", "256", "--mlp", "8"]
ROWS = 1200


@pytest.fixture
def data(memory, tmp_path, monkeypatch):
    """A prepared folder; the log that it is made of is beside it, and a features file."""
    monkeypatch.chdir(tmp_path)
    rows = (f"{i * 7 % 3 // 2},{i * 400},{i % 30},{i / 9:.3f}" for i in range(ROWS))
    log = "\n".join(["y,time,user,age", *rows, ""])
    memory.pipe_file("/a/log.csv", log.encode())
    features = "label: y\ntime: time\ncategorical: [user]\ncontinuous: [age]\n"
    memory.pipe_file("/a/f.yaml", features.encode())
    columns = ["--label", "y", "--categorical", "user", "--continuous", "age"]
    assert main(["prepare", "table", "memory://a/log.csv", "--out", DATA, *columns]) == 0
    return DATA


@pytest.mark.thorough
def test_a_search_is_there_and_goes_on_there(data, memory, capsys):
    pytest.importorskip("optuna")
    words = ["tune", data, "--out", TUNED, *MODEL, "--epochs", "1"]
    assert main([*words, "--trials", "1"]) == 0
    found = [name.removeprefix("/a/TUNED/") for name in memory.find("/a/TUNED")]
    assert {"study.db", "settings.yaml", "trials.csv", "history.svg"} <= set(found)
    assert f"cowclip train {data} --settings {TUNED}/settings.yaml" in capsys.readouterr().out
    assert main([*words, "--trials", "2"]) == 2
    assert f"{TUNED}: already exists; use --resume to go on" in capsys.readouterr().err
    assert main([*words, "--trials", "2", "--resume"]) == 0
    trials = list(csv.DictReader(memory.cat_file("/a/TUNED/trials.csv").decode().splitlines()))
    assert len(trials) == 2
    assert read_settings(Address(f"{TUNED}/settings.yaml"))["epochs"] == 1


def test_experiments_read_what_is_there(data, capsys):
    options = ["--out", "RESULTS", "--seeds", "1", "--mlp", "8", "--dry-run"]
    assert main(["experiment", "table2", "--data", data, "--steps", "2", *options]) == 0
    log = ["--log", "memory://a/lo*.csv", "--features", "memory://a/f.yaml"]
    assert main(["experiment", "monolith_sync", *log, *options]) == 0
    missing = ["--log", "memory://a/none.csv", "--features", "memory://a/f.yaml"]
    assert main(["experiment", "monolith_sync", *missing, *options]) == 2
    assert "memory://a/none.csv: no such file; check the path" in capsys.readouterr().err
