"""A small prepared folder, and what one, two and three workers make of it."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

ROWS = 4500
FIELDS = {"user": 300, "item": 90, "site": 7}
COLUMNS = ["--label", "click", "--categorical", ",".join(FIELDS), "--continuous", "price"]


def write_log(path, rows, seed):
    """A log in which some values are frequent and some occur once."""
    rng = np.random.default_rng(seed)
    ids = [np.floor(size * rng.random(rows) ** 3).astype(int) for size in FIELDS.values()]
    price = rng.random(rows).round(3)
    click = rng.random(rows) < 0.2 + 0.2 * (ids[0] % 3 == 0) + 0.3 * (ids[1] % 2) + 0.1 * price
    lines = (f"{int(c)},u{u},i{i},s{s},{p}" for c, u, i, s, p in zip(click, *ids, price))
    path.write_text("\n".join([",".join(["click", *FIELDS, "price"]), *lines]) + "\n")


def prepare(folder, rows, seed):
    """Prepare a log in `folder/data`, with its cache, so that no worker copies half of it."""
    from cowclip_merlin.cli import main
    from cowclip_merlin.loading import open_columns
    from cowclip_merlin.workflows import PreparedData

    write_log(folder / "log.csv", rows, seed)
    out = folder / "data"
    words = ["prepare", "table", str(folder / "log.csv"), "--out", str(out), *COLUMNS]
    assert main(words) == 0
    for split in ("train", "test"):
        open_columns(PreparedData.load(out), split)


@pytest.fixture(scope="session")
def rows(make_once) -> Path:
    """A prepared folder with its cache."""
    return make_once("rows_of_workers", lambda folder: prepare(folder, ROWS, 3)) / "data"


@pytest.fixture(scope="session")
def other_rows(make_once) -> Path:
    """The same columns with other rows."""
    return make_once("other_rows_of_workers", lambda folder: prepare(folder, ROWS, 4)) / "data"


@pytest.fixture(scope="session")
def by_one(rows, make_once) -> Path:
    """What this process trained in all cases and in a run."""
    import run_commands
    import trajectories
    from cases import CASES

    from cowclip_merlin.cli import main

    def make(folder):
        trajectories.main(rows, folder, CASES[1])
        assert main(run_commands.train(rows, folder / "whole")) == 0

    return make_once("by_one", make)


@pytest.fixture(scope="session")
def by_two(rows, other_rows, make_once) -> Path:
    """What two workers made: exchanges, all cases, and the runs of `run_commands`."""
    import run_commands
    from cases import CASES
    from processes import run_calls, run_killed

    def make(folder):
        run_killed(run_commands.train(rows, folder / "killed"), folder, workers=2)
        commands = run_commands.of_two(rows, other_rows, folder)
        (folder / "names.json").write_text(json.dumps(list(commands)))
        run_calls(folder, CASES[2], list(commands.values()), rows, workers=2)

    return make_once("by_two", make)


@pytest.fixture(scope="session")
def by_three(rows, by_two, make_once) -> Path:
    """What three workers made: exchanges, some cases, and the rest of a run of two workers."""
    import run_commands
    from cases import CASES
    from processes import run_calls

    def make(folder):
        shutil.copytree(by_two / "sharded", folder / "sharded")
        goes_on = run_commands.sharded(rows, folder / "sharded", 3, "--resume")
        run_calls(folder, CASES[3], [{"arguments": goes_on}], rows, workers=3)

    return make_once("by_three", make)
