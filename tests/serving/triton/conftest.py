"""Makes `model_config` importable; a repository of a table with unusual names, once."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.append(str(Path(__file__).parent))
from unusual_rows import CATEGORICAL, CONTINUOUS, raw_rows

HERE = Path(__file__).parent

ROWS = 600


def write_log(path, rows):
    columns = {name: pa.array([row[name] for row in rows]) for name in CATEGORICAL + CONTINUOUS}
    pq.write_table(pa.table({"y": [i % 2 for i in range(len(rows))]} | columns), path)


@pytest.fixture(scope="session")
def trained_table(make_once):
    """A folder with DATA, RUN, NEW (rows without a split), and its raw rows."""
    from cowclip_merlin.cli import main

    def make(folder):
        data, run, new = (str(folder / name) for name in ("DATA", "RUN", "NEW"))
        write_log(folder / "log.parquet", raw_rows(ROWS, 1))
        write_log(folder / "new.parquet", raw_rows(300, 2, values=60))
        names = ["--label", "y", "--categorical", ",".join(CATEGORICAL)]
        names += ["--continuous", ",".join(CONTINUOUS), "--log", "--freq-threshold", "3"]
        like = ["prepare", "table", str(folder / "new.parquet"), "--out", new, "--like", data]
        small = ["--batch-size", "128", "--base-batch-size", "32", "--mlp", "8", "--epochs", "2"]
        for command in (
            ["prepare", "table", str(folder / "log.parquet"), "--out", data, *names],
            ["train", data, "--out", run, "--model", "deepfm", *small],
            like,
            ["evaluate", run, new, "--predictions", str(folder / "expected.parquet")],
        ):
            assert main(command) == 0

    return make_once("triton-table", make)


@pytest.fixture(scope="session")
def exported(trained_table, tmp_path_factory):
    """A repository that was moved, after DATA and RUN were deleted; rows and probabilities."""
    from cowclip_merlin.cli import main

    folder = tmp_path_factory.mktemp("exported")
    for name in ("DATA", "RUN"):
        shutil.copytree(trained_table / name, folder / name)
    words = ["--triton", "--model-name", "clicks", "--model-version", "3"]
    out = folder / "REPO"
    assert (
        main(["export", str(folder / "RUN"), str(folder / "DATA"), "--out", str(out), *words]) == 0
    )
    for name in ("DATA", "RUN"):
        shutil.rmtree(folder / name)
    moved = folder / "elsewhere"
    moved.mkdir()
    out.rename(moved / "models")
    expected = pandas.read_parquet(trained_table / "expected.parquet").probability.to_numpy()
    return SimpleNamespace(
        repo=moved / "models", rows=raw_rows(300, 2, values=60), expected=expected
    )


@pytest.fixture(scope="session")
def serve(exported, tmp_path_factory):
    """Answers to batches of requests, by a process without this package."""

    def answers(batches):
        folder = tmp_path_factory.mktemp("served")
        (folder / "requests.json").write_text(json.dumps(batches))
        files = [exported.repo / "clicks", "3", folder / "requests.json", folder / "answers.json"]
        command = [sys.executable, "-B", HERE / "served.py", *files]  # -B: nothing is added there
        subprocess.run(command, cwd=folder, check=True)
        return json.loads((folder / "answers.json").read_text())

    return answers
