"""What several workers cannot do is one line."""

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.launcher import LaunchSettings
from cowclip_merlin.online import OnlineSettings
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.training import workers
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.online.training.start_workers import start_workers
from cowclip_merlin.online.training.stream_folder import _refuse_for_workers
from cowclip_merlin.online.training.workers import _refuse_micro_batches, refuse_other_events
from cowclip_merlin.training import RunSettings
from cowclip_merlin.workers import Workers


def settings(**more):
    run = {"model": "deepfm", "batch_size": 64, "base_batch_size": 64, "update": "lazy"} | more
    return OnlineSettings(run=RunSettings(**run), capacity=100)


def test_micro_batches():
    _refuse_micro_batches(settings(), 8)
    _refuse_micro_batches(settings(rule="invariant"), 1)
    with pytest.raises(InputError, match="'invariant' needs micro-batches"):
        _refuse_micro_batches(settings(rule="invariant"), 8)


def test_copies_of_snapshots():
    one = LogFeatures(label="click", time="t", categorical=())
    _refuse_for_workers(StreamSettings(), one)
    with pytest.raises(InputError, match="`snapshots` of several workers"):
        _refuse_for_workers(StreamSettings(snapshots="s3://bucket/run"), one)


def test_several_labels():
    two = LogFeatures(label="click", more_labels=("buy",), time="t", categorical=())
    with pytest.raises(InputError, match="labels click, buy: several workers train on one label"):
        _refuse_for_workers(StreamSettings(), two)


def test_other_events_of_a_step(monkeypatch):
    refuse_other_events(None, 64)
    group, counts = Workers(0, ("a:1", "b:2")), [64.0, 64.0]
    monkeypatch.setattr(workers, "numbers_of_all", lambda *_: counts)
    refuse_other_events(group, 64)
    counts[1] = 20.0
    words = r"worker 1 \(b:2\) has read 20 events of a step, worker 0 64; let all workers read the "
    with pytest.raises(InputError, match=words):
        refuse_other_events(group, 64)


def test_a_scheduler_cannot_start_the_workers_of_a_stream(tmp_path):
    out, processes = tmp_path / "run", LaunchSettings(scheduler="tcp://a:1")
    with pytest.raises(InputError, match=r"`scheduler` is tcp://a:1, .*; use `workers`"):
        start_workers(["online"], processes, out=str(out), batch_size=64)
    assert not out.exists()
