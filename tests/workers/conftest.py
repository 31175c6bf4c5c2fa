"""Prepared rows, and what one, two and three workers make of them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

ROWS = 20_000


@pytest.fixture(scope="session")
def rows(make_once) -> Path:
    """A prepared folder with its cache."""
    from cowclip_merlin.cli import main
    from cowclip_merlin.loading import open_columns
    from cowclip_merlin.synthetic.criteo_log import generate
    from cowclip_merlin.workflows import PreparedData

    def make(folder):
        generate(folder / "log.txt", rows=ROWS, seed=3)
        assert (
            main(["prepare", "criteo", str(folder / "log.txt"), "--out", str(folder / "data")]) == 0
        )
        for split in ("train", "test"):
            open_columns(PreparedData.load(folder / "data"), split)

    return make_once("rows_of_workers", make) / "data"


@pytest.fixture(scope="session")
def trained(rows, make_once):
    """`trained(n)`: the folder with what n workers trained in all cases for n workers."""
    from cases import CASES
    from processes import run_script

    def get(workers):
        def make(folder):
            run_script("trajectories.py", rows, folder, CASES[workers], workers=workers)

        return make_once(f"trained_by_{workers}", make)

    return get
