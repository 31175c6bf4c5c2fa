"""The worker's own module: how its errors become exit codes and lines."""

import os
import sys
from dataclasses import asdict

import pytest

from cowclip_merlin.errors import Diverged, InputError, WorkerLost
from cowclip_merlin.launcher import TrainCall, worker
from cowclip_merlin.training import RunSettings, Stopped
from cowclip_merlin.training.run_settings import RunOptions

SETTINGS = RunSettings(model="deepfm", batch_size=256, mlp=(8, 4), overrides={"l2": 1e-4})
CALL = TrainCall(
    data="some/data",
    settings=SETTINGS.as_dict(),
    out="some/run",
    options=RunOptions(
        resume=True, checkpoint_every=5, device="cpu", data_memory=1.5, diagnostics_every=7
    ),
)


@pytest.fixture
def end(monkeypatch):
    """Runs the worker with a training that ends in an error; returns the exit code."""

    def run(error):
        def train(*_, **__):
            raise error

        monkeypatch.setenv("COWCLIP_TRAIN_CALL", CALL.to_json())
        monkeypatch.setattr("cowclip_merlin.train.train", train)
        return worker.main()

    return run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("x.txt: no\nsuch file"), 2, "cowclip: error: x.txt: no such file\n"),
        (Diverged("too fast"), 2, "cowclip: error: too fast\n"),
        (WorkerLost("worker 1 is gone"), 75, "cowclip: error: worker 1 is gone\n"),
        (FileNotFoundError(2, "No such file", "a"), 2, "cowclip: error: a: No such file; check"),
        (Stopped(15), 143, ""),
        (Stopped(2), 130, ""),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_exit_codes_and_lines(end, capsys, error, code, line):
    assert end(error) == code
    shown = capsys.readouterr()
    assert shown.err.startswith(line) and bool(shown.err) == bool(line)
    assert shown.out == ""


def test_a_bug_keeps_its_traceback(end):
    with pytest.raises(ZeroDivisionError):
        end(ZeroDivisionError("a bug"))


def test_every_argument_arrives(monkeypatch):
    got = {}

    def train(data, settings, **others):
        got.update(data=data, settings=settings, **others)

    monkeypatch.setenv("COWCLIP_TRAIN_CALL", CALL.to_json())
    monkeypatch.setattr("cowclip_merlin.train.train", train)
    assert worker.main() == 0
    assert got.pop("settings") == SETTINGS
    assert got == {"data": CALL.data, "out": CALL.out} | asdict(CALL.options)


def test_progress_bars_see_a_terminal(monkeypatch):
    seen = []
    monkeypatch.setenv("COWCLIP_TRAIN_CALL", CALL.to_json())
    monkeypatch.setenv("COWCLIP_TERMINAL", "1")
    monkeypatch.setattr(worker, "run", lambda _: seen.append(sys.stderr.isatty()))
    with open(os.devnull, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert worker.main() == 0
    assert seen == [True]
