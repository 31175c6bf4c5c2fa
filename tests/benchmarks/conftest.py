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


@pytest.fixture(scope="session")
def benchmark_of(load):
    """A benchmark by its command, such as "peers" or "step loading"."""

    def found(command):
        script, _, part = command.partition(" ")
        module = load(script)
        return module.SUITE.parts[part] if part else module.BENCHMARK

    return found


@pytest.fixture
def measured(load, benchmark_of, tmp_path, capsys):
    """Runs a benchmark with options in one text; returns its JSON and what it prints."""

    def run(command, options, *others):
        file = tmp_path / f"{command}.json"
        script, *part = command.split()
        words = [*part, *options.split(), *map(str, others), "--json", str(file)]
        benchmark = benchmark_of(command)  # while the folder is on the path
        main = load(script).SUITE.main if part else benchmark.main
        main([*words, *["--overwrite"] * file.exists()])
        result = json.loads(file.read_text())
        shown = " ".join([f"python benchmarks/{script}.py", *part, options])
        assert result["command"].startswith(shown)
        assert result["load_before"] >= 0 and result["date"] and result["hardware"]
        assert result["versions"]["tensorflow"] and str(tmp_path) not in file.read_text()
        return result, capsys.readouterr().out

    return run


@pytest.fixture
def refused(benchmark_of, capsys):
    """Runs a benchmark that must end with one line; returns the exit code and the line."""

    def run(command, *words):
        with pytest.raises(SystemExit) as stopped:
            benchmark_of(command).main([*map(str, words)])
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and told.endswith("\n")
        return stopped.value.code, told

    return run
