"""The generated log in every format and prepared for every door; a case for each role."""

import csv
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from data import KINDS, PLAIN, ROLES, frame, settings_of, write

from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare


@pytest.fixture(params=ROLES.values(), ids=[*ROLES])
def role(request):
    return request.param


@pytest.fixture(scope="session")
def logs(make_once):
    """A folder with the log in each format: log.csv, log.csv.gz, log.jsonl, log.parquet."""
    return make_once(
        "column_logs", lambda folder: [write(folder / f"log.{kind}", frame()) for kind in KINDS]
    )


@pytest.fixture(scope="session")
def data_of(logs, make_once):
    """Prepares the log once: in the roles and from the format that are named."""

    def get(roles=(*ROLES,), kind="parquet"):
        def make(folder):
            files = (logs / f"log.{kind}",)
            prepare(PrepareSettings(files=files, out=folder / "DATA", **settings_of(*roles)))

        folder = make_once(f"column_data-{kind}-{'-'.join(roles)}", make)
        return PreparedData.load(folder / "DATA")

    return get


@pytest.fixture(scope="session")
def data(data_of):
    """The log prepared in all roles."""
    return data_of()


@pytest.fixture(scope="session")
def plain(data_of):
    return data_of(PLAIN)


for folder in (
    "training",
    "serving/live",
    "serving/triton",
    "online",
    "online/training",
):  # where helpers of the doors are
    sys.path.append(str(Path(__file__).parents[1] / folder))


@pytest.fixture(scope="session")
def settings():
    """A small model with three labels."""
    small = {"mlp": (8,), "batch_size": 64, "base_batch_size": 64, "epochs": 2, "embedding_dim": 4}
    rates = {"dense_lr": 0.02, "embedding_lr": 0.02}
    return RunSettings(model="deepfm", multi_task="mmoe", experts=2, overrides=rates, **small)


@pytest.fixture(scope="session")
def run(data, settings, make_once):
    """A run on all roles: its folder, and the rows of its metrics.csv."""

    def make(folder):
        train(data.path, settings, out=folder / "RUN", diagnostics_every=5)

    path = make_once("column_run", make) / "RUN"
    with (path / "metrics.csv").open(newline="") as file:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    return SimpleNamespace(path=path, rows=rows, row=rows[-1])
