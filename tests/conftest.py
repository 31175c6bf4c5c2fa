"""A small generated log, prepared once, for every test that trains."""

from pathlib import Path

import pytest

from cowclip_merlin.cli import main
from cowclip_merlin.synthetic.criteo_log import generate

ROWS = 3000


@pytest.fixture(scope="session")
def log(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.txt"
    generate(path, rows=ROWS, seed=3)
    return path


@pytest.fixture(scope="session")
def data(log, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "data"
    assert main(["prepare", "criteo", str(log), "--out", str(folder)]) == 0
    return folder
