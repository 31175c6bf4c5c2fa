"""Events as messages, and a training on them in a folder."""

import itertools
import json
import logging
from dataclasses import replace
from functools import partial

import numpy as np

from cowclip_merlin.online import FileLog
from cowclip_merlin.online.events.columns import (
    CategoricalColumn,
    ContinuousColumn,
    ListRules,
    VectorColumn,
)
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.training.loop import StreamTrainer
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.tables.snapshot import load_snapshot

EVENTS = 1000
LOG = logging.getLogger("test")
FEATURES = LogFeatures(
    label="click",
    time="time",
    key="key",
    categorical=(
        CategoricalColumn(name="user"),
        CategoricalColumn(name="item", rules=FieldRules(ttl=60, admit=2)),
    ),
    continuous=(ContinuousColumn(name="price"),),
)
LISTS = replace(
    FEATURES,
    categorical=(
        *FEATURES.categorical,
        CategoricalColumn(
            name="tags", rules=FieldRules(ttl=90, admit=2), lists=ListRules(separator="|")
        ),
    ),
    vectors=(VectorColumn(name="text", length=2),),
)


LABELS = replace(FEATURES, more_labels=("buy", "sec"), regression=("sec",))


def event(i, **more):
    """Event i of an endless stream, one a second."""
    return {
        "click": (i * 7) % 3 == 0,
        "time": 1_700_000_000 + i,
        "key": f"r{i}",
        "user": i * i % 53 + i // 100,
        "item": f"i{i // 20 + i % 5}",
        "price": i % 11 / 10,
    } | more


def messages(indices):
    return [json.dumps(event(i)).encode() for i in indices]


def messages_with_lists(indices):
    """Messages for `LISTS`, with a vector; every third one has text instead of lists."""
    lists = [[f"t{(i + j * j) % 40}" for j in range(i % 5)] for i in indices]
    vectors = [[i % 3 / 3, -(i % 4)] if i % 3 else f"0|{-(i % 4)}" for i in indices]
    return [
        json.dumps(event(i, tags=tags if i % 3 else "|".join(tags), text=text)).encode()
        for i, tags, text in zip(indices, lists, vectors)
    ]


def messages_with_labels(indices):
    """Messages for `LABELS`; some labels are missing, and some messages are damaged."""
    labels = [{"buy": (i * 3) % 5 == 0 if i % 4 else None, "sec": i % 7 / 7} for i in indices]
    values = [json.dumps(event(i, **more)).encode() for i, more in zip(indices, labels)]
    values[300:300] = [json.dumps(event(300, buy=2, sec=1)).encode()]
    return values


def next_batch(reader, size, **how):
    """The next events of a reader, past steps without events; None if they are not there yet."""
    while (step := reader.choose(size, **how)) is not None:
        if (events := reader.take(step)) is not None:
            return events
    return None


def log_of(folder, values):
    log = FileLog(folder)
    for first in range(0, len(values), 50):
        log.append(values[first : first + 50])
    return log


def stream_trainer(
    folder, settings, events, servers=None, *, features=FEATURES, trainer=None, **stream
):
    """A training; `stream` are its settings, which run to the end of the log."""
    stream = {"max_wait": 0.0, "snapshot_every": 0.0, "sync_every": 0.0} | stream
    settings_of_stream = StreamSettings(until_end=True, **stream)
    folder.mkdir(exist_ok=True)
    trainer = trainer or OnlineTrainer(settings, features, catch_up=settings_of_stream.catch_up)
    return StreamTrainer(trainer, events, servers, settings_of_stream, folder, LOG)


def final_state(folder):
    """The training at the end of a run: everything but what servers have not acknowledged."""
    snapshot = load_snapshot(folder / "snapshots")
    arrays = {k: x.tobytes() for k, x in snapshot.arrays.items() if ".changes" not in k}
    return snapshot.number, arrays


def assert_equal_but_rounding(folder, other, trained):
    """Of several labels, TensorFlow adds more gradients, in an order that differs between runs."""
    found, wanted = (load_snapshot(each / "snapshots") for each in (folder, other))
    assert found.number == wanted.number == trained
    for name, x in wanted.arrays.items():
        if ".changes" not in name:
            compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
            compare = compare if x.dtype.kind == "f" else np.testing.assert_array_equal
            compare(found.arrays[name], x, err_msg=name)


class Killed(BaseException):
    """In place of a signal that cannot be caught."""


def killed_at(monkeypatch, calls):
    """Kill the training at the n-th of the calls that change something."""
    from cowclip_merlin.online.training.steps import StepJournal
    from cowclip_merlin.online.training.trainer import StepPipeline
    from cowclip_merlin.tables.snapshot_writer import SnapshotWriter

    count = itertools.count()

    def counted(function):
        def call(*args, **kwargs):
            if next(count) == calls:
                raise Killed
            return function(*args, **kwargs)

        return call

    for owner, name in (
        (StepJournal, "note"),
        (StepJournal, "begin"),
        (SnapshotWriter, "begin"),
        (StepPipeline, "submit"),
        (FileLog, "append"),
    ):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
