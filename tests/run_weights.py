"""The values of a run's checkpoint, and runs that end at a place that a test chooses."""

import csv
import signal
from contextlib import contextmanager

import pytest

from cowclip_merlin.tables.snapshot import load_snapshot
from cowclip_merlin.training import Stopped
from cowclip_merlin.training.trainer import Trainer


def values_of(run, folder="checkpoints", *, history=False):
    """All that the last checkpoint in a folder of a run has, by name.

    But the history of steps, unless asked for: what it had before a flush depends on when the run
    stopped.
    """
    return load_snapshot(run / folder, wanted=lambda n: history or "history" not in n).arrays


def assert_same_bits(a, b, folder="checkpoints", *, of_b=None, history=False, least=11):
    """The weights and the optimizer's state of two runs, in the same folder of both or in two."""
    ours, theirs = (values_of(*x, history=history) for x in ((a, folder), (b, of_b or folder)))
    assert ours.keys() == theirs.keys() and len(ours) >= least
    for name in ours:
        assert ours[name].tobytes() == theirs[name].tobytes(), name


def metrics_of(run, file="metrics.csv"):
    """The rows of a file of a run, as text."""
    with (run / file).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def without_times(rows):
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


def stop():
    """Send this process the signal that ends a run with a checkpoint."""
    signal.raise_signal(signal.SIGTERM)


@contextmanager
def acting_at(method, when, act=stop):
    """Within it, a training acts before the first call of a method of `Trainer` that `when` names.

    `when(trainer, *arguments)` gets what the call gets.
    """
    real, done = getattr(Trainer, method), []

    def call(self, *given):
        if not done and when(self, *given):
            done.append(given)
            act()
        return real(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, method, call)
        yield


@contextmanager
def stopped_at(method, when):
    """Within it, a signal stops a training there."""
    with pytest.raises(Stopped), acting_at(method, when):
        yield


def at_step(epoch, step):
    """For `_observe`: the first call of this epoch after at least so many of its steps."""
    return lambda _, __, at, done: at == epoch and done >= step
