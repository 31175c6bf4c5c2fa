"""Results that many tests look at, each made once; makes the modules beside it importable."""

import contextlib
import gc
import io
import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_results import make_results, rules_table
from small_experiment import MINE, RULES, SWEEP, SYNC, experiment, run_on_log

from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.experiments.on_data import trainings


@pytest.fixture(scope="session")
def results(make_once):
    """Two folders: one with awkward names, one with nothing but runs and a table."""

    def plain(folder):
        unlike = rules_table(cowclip=(78.5, 78.4, 78.3), other=(78.95, 78.9, 78.91))
        make_results(folder / "second", data="second log", tables=[unlike], figures_too=False)

    first = make_once("refusals-results", lambda folder: make_results(folder / "results"))
    return first / "results", make_once("results", plain) / "second"


@pytest.fixture(scope="session")
def file(results, make_once):
    def make(folder):
        assert main(["report", *map(str, results), "--out", str(folder / "a.html")]) == 0

    return make_once("page", make) / "a.html"


@pytest.fixture
def mine(tmp_path):
    """An experiment's file of one's own."""
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    return path


def run_and_keep(folder, text, data, *more, verb="experiment"):
    """Run a file; keep results, what was printed, and the tables that were there at each start."""
    (folder / "mine.yaml").write_text(text)
    tables, train = [], trainings.train

    def counting(*args, **kwargs):
        variables = [x for x in gc.get_objects() if isinstance(x, compat.tensorflow().Variable)]
        tables.append(sum(x.name.endswith("/embeddings:0") for x in variables))
        return train(*args, **kwargs)

    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(trainings, "train", counting)
        assert experiment(folder / "mine.yaml", data, folder / "results", *more, verb=verb) == 0
    (folder / "tables.json").write_text(json.dumps(tables))
    (folder / "printed.txt").write_text(printed.getvalue())


@pytest.fixture(scope="session")
def made(make_once, data):
    """A folder with the results of the small experiment: six trainings."""
    return make_once("experiment", lambda folder: run_and_keep(folder, MINE, data))


@pytest.fixture
def copied(made, tmp_path):
    """A copy of these results, in which no run of the small experiment is missing."""
    return Path(shutil.copytree(made / "results", tmp_path / "results"))


@pytest.fixture(scope="session")
def swept(make_once, data):
    """A folder with the results of the small sweep, and of a part of it."""

    def make(folder):
        part, one = folder / "part", ("--seeds", "1")
        (folder / "sweep.yaml").write_text(SWEEP)
        options = (*one, "--lines", "r 1")
        assert experiment(folder / "sweep.yaml", data, part, *options, verb="sweep") == 0
        shutil.copytree(part, folder / "results")
        run_and_keep(folder, SWEEP, data, *one, verb="sweep")

    return make_once("sweep", make)


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
def replayed(make_once, drifting_log, definitions):
    """A results folder with both experiments, and what the command printed."""

    def make(folder):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert run_on_log(drifting_log, definitions, folder / "results", "sync", "rules") == 0
        (folder / "printed.txt").write_text(printed.getvalue())

    return make_once("log_results", make)
