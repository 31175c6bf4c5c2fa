"""The commands on a local server of S3: raw logs, prepared folders, runs and scores there."""

import gzip
import io
import json

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin import cli, score, workflows

pytestmark = pytest.mark.system

AT = "s3://logs"
COLUMNS = ["--label", "y", "--categorical", "user", "--continuous", "age"]
MODEL = ["--model", "deepfm", "--batch-size", "256", "--mlp", "8"]
ROWS = 2000


def rows():
    i = np.arange(ROWS)
    return pd.DataFrame({"y": i % 2, "user": i % 7, "age": i / 10})


@pytest.fixture
def days(s3):
    """Three files of a log in three formats, in the order of their names."""
    frame = rows()
    s3.pipe_file("logs/day_1.csv.gz", gzip.compress(frame[:700].to_csv(index=False).encode()))
    lines = "\n".join(json.dumps(row) for row in frame[700:1500].to_dict("records"))
    s3.pipe_file("logs/day_2.jsonl", lines.encode())
    file = io.BytesIO()
    frame[1500:].astype({"user": str}).to_parquet(file)
    s3.pipe_file("logs/day_3.parquet", file.getvalue())
    return f"{AT}/day_*"


def run(capfd, *arguments, code=0):
    assert cli.main([*map(str, arguments)]) == code
    out, error = capfd.readouterr()
    return error.strip() if code else out


def test_rows_are_those_of_a_local_file(days, tmp_path):
    rows().to_csv(tmp_path / "t.csv", index=False)
    layout = workflows.LogFormat(
        kind="table", label="y", categorical=("user",), continuous=("age",)
    )
    found, expected = (workflows.read_log(file, layout) for file in (days, tmp_path / "t.csv"))
    pd.testing.assert_frame_equal(found, expected)


def test_every_command_reads_and_writes_there(days, s3, tmp_path, capfd):
    rows().to_csv(tmp_path / "t.csv", index=False)
    local, data, made = tmp_path / "LOCAL", f"{AT}/prepared", f"{AT}/runs/a"
    run(capfd, "prepare", "table", tmp_path / "t.csv", "--out", local, *COLUMNS)
    said = run(capfd, "prepare", "table", days, "--out", data, *COLUMNS)
    assert f"{data}: 2,000 rows in" in said
    there = workflows.PreparedData.load(data)
    assert there.vocabulary == workflows.PreparedData.load(local).vocabulary
    again = run(capfd, "prepare", "table", days, "--out", data, *COLUMNS, code=2)
    assert again == f"cowclip: error: {data}: already exists; use --overwrite to replace it"
    run(capfd, "prepare", "table", days, "--out", data, *COLUMNS, "--overwrite")
    run(capfd, "prepare", "table", f"{AT}/day_2.jsonl", "--out", f"{AT}/like", "--like", data)

    run(capfd, "train", local, "--out", tmp_path / "RUN", *MODEL, "--epochs", 2)
    run(capfd, "train", data, "--out", made, *MODEL, "--epochs", 1)
    taken = run(capfd, "train", data, "--out", made, *MODEL, "--epochs", 1, code=2)
    assert f"{made}: already exists; use --resume" in taken
    said = run(capfd, "train", data, "--out", made, *MODEL, "--epochs", 2, "--resume")
    assert f"run folder {made}" in said
    config = json.loads(s3.cat_file("logs/runs/a/config.json"))
    assert config["data_path"] == data

    run(capfd, "evaluate", made, data, "--predictions", f"{AT}/p.parquet")
    run(capfd, "evaluate", tmp_path / "RUN", local, "--predictions", tmp_path / "p.parquet")
    pd.testing.assert_frame_equal(
        pd.read_parquet(s3.open("logs/p.parquet")), pd.read_parquet(tmp_path / "p.parquet")
    )
    said = run(capfd, "score", made, days, "--out", f"{AT}/scores.parquet", "--keep", "user")
    assert f"{AT}/scores.parquet: 2,000 rows" in said
    scores = pd.read_parquet(s3.open("logs/scores.parquet"))
    expected = score(tmp_path / "RUN", tmp_path / "t.csv")
    np.testing.assert_array_equal(scores["probability"], expected)
    np.testing.assert_array_equal(score(made, rows(), data=data), expected)
    run(capfd, "export", made, data, "--out", tmp_path / "MODEL")
    run(capfd, "train", data, "--out", tmp_path / "WARM", *MODEL, "--from", made)
    assert not [name for name in s3.find("logs") if "writable" in name]


def test_what_cannot_be_is_one_line(days, s3, tmp_path, capfd, monkeypatch):
    out = ["--out", tmp_path / "DATA", *COLUMNS]
    wrong = run(capfd, "prepare", "table", "s3://nowhere/day.csv", *out, code=2)
    assert wrong == "cowclip: error: s3://nowhere/day.csv: no such file; check the path"
    wrong = run(capfd, "prepare", "table", "s3://nowhere/day_*.csv", *out, code=2)
    assert "s3://nowhere/day_*.csv: " in wrong and "\n" not in wrong
    out = ["--out", "s3://nowhere/data", *COLUMNS]
    wrong = run(capfd, "prepare", "table", days, *out, code=2)
    assert wrong.startswith("cowclip: error: s3://nowhere/data") and "no such bucket" in wrong
    assert not s3.exists("nowhere")
    wrong = run(capfd, "train", f"{AT}/none", "--out", tmp_path / "RUN", *MODEL, code=2)
    assert f"{AT}/none: no such folder with a dataset.json" in wrong
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    type(s3).clear_instance_cache()
    wrong = run(capfd, "evaluate", f"{AT}/run", f"{AT}/data", code=2)
    assert wrong.startswith(f"cowclip: error: {AT}/run: cannot be reached") and "\n" not in wrong
