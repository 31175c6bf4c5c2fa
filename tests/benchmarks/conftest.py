"""The benchmarks are scripts: their folder is on the path when they run, and so it is here."""

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def load():
    """Imports a module of the folder by its name."""

    def imported(name):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(BENCHMARKS))
            return importlib.import_module(name)

    return imported


@pytest.fixture
def measured(load, tmp_path, capsys):
    """Runs a benchmark with options in one text; returns its JSON and what it prints."""

    def run(script, options, *others):
        file = tmp_path / f"{script}.json"
        words = [*options.split(), *map(str, others), "--json", str(file)]
        load(script).BENCHMARK.main([*words, *["--overwrite"] * file.exists()])
        result = json.loads(file.read_text())
        assert result["command"].startswith(f"python benchmarks/{script}.py {options}")
        assert result["load_before"] >= 0 and result["date"] and result["hardware"]
        assert result["versions"]["tensorflow"] and str(tmp_path) not in file.read_text()
        return result, capsys.readouterr().out

    return run


@pytest.fixture
def refused(load, capsys):
    """Runs a benchmark that must end with one line; returns the exit code and the line."""

    def run(script, *words):
        with pytest.raises(SystemExit) as stopped:
            load(script).BENCHMARK.main([*map(str, words)])
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and told.endswith("\n")
        return stopped.value.code, told

    return run
