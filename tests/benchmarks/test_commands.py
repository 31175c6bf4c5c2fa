"""The benchmarks on the command line: help, wrong input, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cowclip_merlin.errors import InputError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SUITES = {
    "rows": ("kernels", "tables"),
    "serving": ("load", "triton"),
    "step": ("profile", "vocabulary", "epoch", "growing", "loading", "diagnostics", "lists"),
}
SCRIPTS = sorted({file.stem for file in BENCHMARKS.glob("*.py")} - {"baseline_settings", *SUITES})
SCRIPTS += [f"{script} {part}" for script, parts in SUITES.items() for part in parts]


@pytest.fixture
def errors(load):
    return load("harness.errors")


def left(run, capsys):
    """Exit code and words on stderr of what must end the process."""
    with pytest.raises(SystemExit) as stopped:
        run()
    return stopped.value.code, capsys.readouterr().err


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_help_names_every_option(benchmark_of, script):
    """In the synopsis and in the list, each with a line; and no option that is not there."""
    from cowclip_merlin.training.run_settings import OVERRIDES

    module = benchmark_of(script)
    shown = [a for a in module.BENCHMARK.parser()._actions if a.help != "==SUPPRESS=="]
    assert all(action.help for action in shown)
    options = {action.option_strings[-1] for action in shown} - {"--help"}
    named = set(re.findall(r"--[a-z][a-z0-9]*(?:-[a-z]+)*", module.__doc__))
    others = {"--" + name.replace("_", "-") for name in OVERRIDES} if script == "baseline" else {}
    assert named <= options and options - named <= set(others)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_benchmark_ends_orderly(benchmark_of, script, monkeypatch, capsys):
    module = benchmark_of(script)

    def ended_by(error):
        def refuse(*_):
            raise error

        monkeypatch.setattr("argparse.ArgumentParser.parse_args", refuse)
        return left(lambda: module.BENCHMARK.main([]), capsys)

    assert ended_by(KeyboardInterrupt()) == (130, "interrupted; no result was written\n")
    assert ended_by(InputError("x is 3;\ngive 4")) == (2, "error: x is 3; give 4\n")


@pytest.mark.parametrize("script", SUITES)
def test_the_help_of_a_suite_names_its_parts(load, script, capsys):
    suite = load(script).SUITE
    assert tuple(suite.parts) == SUITES[script]
    code, told = left(lambda: suite.main(["no-such-part"]), capsys)
    assert code == 2 and all(part in told for part in suite.parts)
    named = re.findall(rf"python benchmarks/{script}.py (\w+)", load(script).__doc__)
    assert tuple(named) == SUITES[script]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_word_for_a_number_is_one_line(refused, script):
    wrong = ["--rounds=x", "--runs=x", "--lookups=x", "--seconds=x", "--seeds=x"]
    code, told = refused(script, *wrong)
    assert code == 2 and "'x'" in told and "--help" in told


def test_paths_and_memory_are_told_in_one_line_and_a_fault_of_ours_is_not_hidden(errors, capsys):
    def run(error):
        with errors.one_line_errors():
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

    file = tmp_path / "a.json"
    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        load("harness.record").print_and_write({"hardware": 1, "versions": {}}, "table", file)
    assert json.loads(file.read_text())["hardware"] == 1


@pytest.mark.parametrize(
    "script, bad, named",
    [
        ("baseline", ["--multipliers", "8,8"], "--multipliers 8,8"),
        ("baseline", ["--mlp", "x"], "--mlp"),
        ("baseline", ["--data", "somewhere", "--rows", "9"], "--rows and --seed"),
        ("step diagnostics", ["--every", "0"], "--every is 0"),
        ("step diagnostics", ["--seconds", "inf"], "--seconds is inf"),
        ("rows kernels", ["--gaps", "1", "1"], "--gaps 1,1"),
        ("rows kernels", ["--vocabulary", "3000000000"], "3000000000"),
        ("step lists", ["--values", "0"], "--values is 0"),
        ("step lists", ["--steps", "0"], "--steps is 0"),
        ("step loading", ["--data-memory", "0"], "--data-memory is 0"),
        ("step loading", ["--model", "fm"], "'fm'"),
        ("step loading", ["--json", "no-such-folder/a.json"], "no-such-folder"),
        ("gpu_operations", ["--rows", "0"], "rows is 0; it must be"),
        ("message_logs", ["--round-trips", "3"], "--round-trips is 3"),
        ("message_logs", ["--logs", "amqp://host/a"], "unknown kind of log 'amqp'"),
        ("online", ["--seconds", "5"], "--seconds is 5"),
        ("online", ["--sync-every", "0"], "--sync-every is 0"),
        ("outages", ["--seeds", "0"], "--seeds is 0"),
        ("days", ["--days", "2"], "--days is 2; give at least 3"),
        ("peers", ["--contestants", "nobody"], "'nobody'"),
        ("peers", ["--rows", "600", "--batches", "512"], "--batches 512"),
        ("peers", ["--deepctr-python", "no-such/python"], "no-such/python"),
        ("prepare", ["--rows", "5,5"], "--rows 5,5"),
        ("prepare", ["--workers", "x"], "--workers 'x'"),
        ("prepare", ["--work", __file__], __file__),
        ("versions", ["--against", ".", "--cases", "join,produce"], "join reads what produce"),
        ("step profile", ["--update", "eager"], "eager"),
        ("step profile", ["--steps", "0"], "--steps is 0"),
        ("rows tables", ["--tfra-python", "no-such/python"], "no-such/python: no such program"),
        ("serving triton", ["--batches", "1,5000"], "--batches 5000 is larger than"),
        ("step vocabulary", ["--vocabularies", "4000,2000"], "--vocabularies 4000,2000"),
        ("step vocabulary", ["--memory-factor", "nan"], "--memory-factor is nan"),
        ("step vocabulary", ["--figure", "a.svg", "--json", "a.svg"], "a.svg"),
        ("workers", ["--workers", "2,3"], "add 1"),
        ("workers", ["--epochs", "1"], "--epochs is 1"),
    ],
)
def test_odd_values(refused, script, bad, named, tmp_path, monkeypatch):
    """One line, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    code, told = refused(script, *bad)
    assert code == 2 and told.startswith("error: ") and named in told
    assert not list(tmp_path.iterdir())


def test_prepare_deletes_nothing_of_others(load, tmp_path, monkeypatch):
    prepare = load("prepare")
    monkeypatch.setattr(prepare, "timed", lambda *_: (1.0, 2.0, 3.0))
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
        load("prepare").timed(command, tmp_path / "ours.log")


@pytest.mark.system
def test_ctrl_c_leaves_one_line_and_no_half_file(tmp_path):
    command = [sys.executable, "benchmarks/prepare.py", "--rows", "30000000"]
    process = subprocess.Popen(
        [*command, "--work", str(tmp_path)],
        cwd=BENCHMARKS.parent,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TQDM_DISABLE": "1"},
        # What a shell starts in the background ignores SIGINT, and so does what that starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until = time.monotonic() + 300
    while not list(tmp_path.iterdir()) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 130 and told == "interrupted; no result was written\n"
    assert not list(tmp_path.iterdir())
