"""A small drifting log, and a results folder with its experiments, made once for all tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from small_log_experiment import RULES, SYNC, run_on_log


@pytest.fixture(scope="session")
def drifting_log(make_once):
    """A folder with log.csv and log.csv.yaml: 3,000 events of three days."""
    from cowclip_merlin.synthetic.drifting_log import generate_drifting

    return make_once(
        "experiment_log",
        lambda folder: generate_drifting(folder / "log.csv", rows=3000, days=3, seed=1),
    )


@pytest.fixture(scope="session")
def definitions(make_once):
    """A folder with sync.yaml and rules.yaml."""

    def make(folder):
        (folder / "sync.yaml").write_text(SYNC)
        (folder / "rules.yaml").write_text(RULES)

    return make_once("log_definitions", make)


@pytest.fixture(scope="session")
def results(make_once, drifting_log, definitions):
    """A results folder with both experiments, and what the command printed."""

    def make(folder):
        import contextlib
        import io

        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert run_on_log(drifting_log, definitions, folder / "results", "sync", "rules") == 0
        (folder / "printed.txt").write_text(printed.getvalue())

    return make_once("log_results", make)
