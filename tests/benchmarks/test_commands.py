"""The benchmarks on the command line: help, Ctrl-C, files; tests/refusals has wrong input."""

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SUITES = {
    "serving": ("load", "triton"),
    "step": ("vocabulary", "growing", "diagnostics"),
}
SCRIPTS = sorted(
    file.stem for file in BENCHMARKS.glob("*.py") if "\nBENCHMARK = " in file.read_text("utf-8")
)
SCRIPTS += [f"{script} {part}" for script, parts in SUITES.items() for part in parts]


@dataclass(frozen=True)
class NoSettings(Settings):
    """Nothing to choose."""


@pytest.fixture
def errors(load):
    return load("harness")


def left(run, capsys):
    """Exit code and words on stderr of what must end the process."""
    with pytest.raises(SystemExit) as stopped:
        run()
    return stopped.value.code, capsys.readouterr().err


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_help_tells_what_every_option_means(benchmark_of, script):
    """And the text names no option that is not there."""
    benchmark = benchmark_of(script)
    parser = benchmark.parser()
    shown = [a for a in parser._actions if a.help != "==SUPPRESS=="]
    assert all(action.help for action in shown)
    options = {x for action in shown for x in action.option_strings}
    assert {*re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", parser.description)} <= options
    assert parser.format_help()


def test_a_benchmark_ends_orderly(benchmark_of, monkeypatch, capsys):
    benchmark = benchmark_of("days")
    for error, code, words in (
        (KeyboardInterrupt(), 130, "interrupted; no result was written\n"),
        (InputError("x is 3;\ngive 4"), 2, "error: x is 3; give 4\n"),
    ):

        def refuse(*_, error=error):
            raise error

        monkeypatch.setattr("argparse.ArgumentParser.parse_args", refuse)
        assert left(lambda: benchmark.main([]), capsys) == (code, words)


@pytest.mark.parametrize("script", SUITES)
def test_the_help_of_a_suite_names_its_parts(load, script):
    assert tuple(load(script).SUITE.parts) == SUITES[script]
    assert tuple(re.findall(r"(?m)^ *(\w+)  +\S", load(script).__doc__)) == SUITES[script]


def test_paths_and_memory_are_told_in_one_line_and_a_fault_of_ours_is_not_hidden(errors, capsys):
    def run(error):
        with errors.one_line_errors(["--overwrite"], []):
            raise error

    for error, words in (
        (NotADirectoryError(20, "Not a directory", "a/b"), "a/b: Not a directory"),
        (OSError(28, "No space left", None), "no space left"),
        (MemoryError("Unable to allocate 9 TiB"), "9 TiB"),
    ):
        code, told = left(lambda error=error: run(error), capsys)
        assert code == 2 and told.startswith("error: ") and words in told
        assert told.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        run(ZeroDivisionError())


def test_files_that_cannot_be_written_are_refused_and_others_left_as_they_are(errors, tmp_path):
    there, long = tmp_path / "a.json", tmp_path / ("x" * 250)
    there.write_text("before")
    errors.check_output_files(there, None, tmp_path / "b.json", overwrite=True)
    with pytest.raises(InputError, match=r"a\.json: already exists; use `overwrite`"):
        errors.check_output_files(there, tmp_path / "b.json")
    for bad in (tmp_path, tmp_path / "none" / "a.json", there / "b", Path("/dev/null"), long):
        with pytest.raises(InputError, match=r"folder|regular|cannot be written"):
            errors.check_output_files(bad, overwrite=True)
    with pytest.raises(InputError, match="once"):
        errors.check_output_files(there, there, overwrite=True)
    with pytest.raises(InputError, match="--overwrite has no effect without a file to write"):
        errors.check_output_files(None, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]
    assert there.read_text() == "before"


def test_the_result_is_written_though_nobody_reads_the_words(load, tmp_path, monkeypatch):
    class Closed:
        def write(self, _):
            raise BrokenPipeError

        flush = write

        def fileno(self):
            return os.open(os.devnull, os.O_WRONLY)

    harness, file = load("harness"), tmp_path / "a.json"
    monkeypatch.setattr(sys, "stdout", Closed())
    benchmark = harness.Benchmark(
        about="x", settings=NoSettings, measure=lambda _: {"what": 1}, text=lambda _: "table"
    )
    benchmark.main(["--json", str(file)])
    assert json.loads(file.read_text())["what"] == 1


def test_prepare_deletes_nothing_of_others(load, tmp_path, monkeypatch):
    prepare = load("prepare")
    monkeypatch.setattr(prepare, "run_timed", lambda *_: (1.0, 2.0, 3.0))
    monkeypatch.setattr(prepare, "same_apart", lambda *_: True)
    others = tmp_path / "pandas" / "mine.txt"
    others.parent.mkdir()
    others.write_text("mine")
    prepare.BENCHMARK.main(["--rows", "50", "--runs", "1", "--work", str(tmp_path)])
    assert others.read_text() == "mine"
    assert {file.name for file in tmp_path.iterdir()} == {"pandas", "log-50.txt", "log-50.txt.json"}


@pytest.mark.system
def test_a_run_that_fails_is_told_by_its_last_words(load, tmp_path):
    command = [sys.executable, "-c", "raise SystemExit('the last words')"]
    with pytest.raises(InputError, match="ours: a run failed: the last words"):
        load("prepare").run_timed(command, tmp_path / "ours.log")
