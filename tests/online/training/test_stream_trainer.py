"""A training on a stream: each event once, also after kills."""

import csv
import itertools
import json
import os
import random
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
from streams import (
    EVENTS,
    FEATURES,
    LABELS,
    LISTS,
    Killed,
    assert_equal_but_rounding,
    event,
    final_state,
    killed_at,
    log_of,
    messages,
    messages_with_labels,
    messages_with_lists,
    stream_trainer,
)

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.logs.message_log import MessagesLost
from cowclip_merlin.online.training import steps
from cowclip_merlin.tables.snapshot import load_snapshot, numbers

pytestmark = pytest.mark.runs


def test_each_event_is_trained_once(tmp_path, settings, events, whole):
    """Against batches of the plain trainer."""
    from cowclip_merlin.online.training.trainer import OnlineTrainer

    number, state = whole
    assert number == EVENTS
    plain = OnlineTrainer(settings, FEATURES)
    for first in range(0, EVENTS, 32):
        part = range(first, min(first + 32, EVENTS))
        batch, _ = encode_messages(messages(part), FEATURES)
        rows = plain.table.admit(batch.ids, batch.times)
        plain.table.hold(rows)
        plain.step(rows, batch)
        plain.table.expire()
    for name, x in plain.state().items():
        assert state[f"trainer.{name}"] == x.tobytes(), name


@pytest.mark.thorough
def test_a_full_table_drops_the_oldest_ids_and_says_so_once(tmp_path, settings_of, caplog):
    caplog.set_level("INFO")
    small = settings_of(batch_size=32, table={"capacity": 60})
    for part in (range(600), range(600, 900)):
        log = log_of(tmp_path / "events", messages(part))
        work = stream_trainer(tmp_path / "run", small, log, snapshot_every=1e-9)
        work.run()
        statistics = work.trainer.table.statistics()
        assert statistics.evicted and sum(statistics.rows) <= 58
    assert work.trained == 900
    assert caplog.text.count("the table is full: ids that were not seen for longest lose") == 1


def killed_twice(folder, settings, events, seed, monkeypatch, features=FEATURES):
    """The state at the end of a training that is killed at random calls."""

    def trainer(**more):
        log = FileLog(folder / "sync")
        return stream_trainer(folder / "run", settings, events, log, features=features, **more)

    random_ = random.Random(seed)
    for _ in range(2):
        with monkeypatch.context() as patch:
            killed_at(patch, random_.randrange(60))
            work = trainer(snapshot_every=1e-9)
            try:
                work.run()
            except Killed:
                continue
            break
    trainer().run()
    return final_state(folder / "run")


@pytest.mark.thorough
def test_killed_anywhere_and_started_again_it_ends_the_same(
    tmp_path, settings, events, whole, monkeypatch
):
    assert killed_twice(tmp_path, settings, events, 0, monkeypatch) == whole


def test_killed_with_all_that_a_training_may_keep(tmp_path, settings_of, monkeypatch):
    """Lists and vectors, sums of Adagrad, a full table, moving statistics, rates that fall."""
    settings = settings_of(
        batch_size=32,
        table={"capacity": 110, "max_rows": 100, "lr_events": 800},
        optimizer="rowwise_adagrad",
        rule="none",
        overrides={"initial_accumulator": 0.25},
        **{"activation": "dice", "batch_norm": True, "dropout": 0.3},
        **{"lr_schedule": "linear", "lr_floor": 0.25},
    )
    log, folder = (
        log_of(tmp_path / "events", messages_with_lists(range(EVENTS))),
        tmp_path / "whole",
    )
    work = stream_trainer(folder, settings, log, FileLog(tmp_path / "to"), features=LISTS)
    work.run()
    whole = final_state(folder)
    assert killed_twice(tmp_path, settings, log, 5, monkeypatch, LISTS) == whole
    arrays = load_snapshot(folder / "snapshots").arrays
    sums = arrays["trainer.table.table0.accumulator"]
    assert sums.size == len(arrays["trainer.table.ids"])  # one for each row
    assert sums.min() == 0.25 < sums.max()
    assert work.trainer.table.statistics().evicted and arrays["trainer.trained"] == EVENTS
    counts = {name: x for name, x in arrays.items() if name.startswith("trainer.count")}
    assert counts == {"trainer.count0": -(-EVENTS // 32)}  # steps of the only dropout
    *_, row = csv.DictReader((folder / "metrics.csv").open())  # on a slow machine there are more
    usual = settings.run.hyperparameters("table")
    assert float(row["embedding_lr"]) == pytest.approx(0.25 * usual.embedding_lr)
    assert float(row["dense_lr"]) == pytest.approx(0.25 * usual.dense_lr)


@pytest.mark.thorough
def test_killed_with_several_labels_it_ends_the_same(tmp_path, settings, monkeypatch):
    log = log_of(tmp_path / "events", messages_with_labels(range(EVENTS)))
    stream_trainer(tmp_path / "whole", settings, log, features=LABELS).run()
    killed_twice(tmp_path, settings, log, 4, monkeypatch, LABELS)
    assert_equal_but_rounding(tmp_path / "run", tmp_path / "whole", EVENTS)


@pytest.mark.thorough
def test_smaller_and_larger_batches_are_the_same_after_a_restart(
    tmp_path, settings, events, monkeypatch
):
    """`max_wait` and `catch_up` cut batches by the clock; the journal knows them."""
    run, more = tmp_path / "run", {"max_wait": 1e-9, "catch_up": 4}

    def keep_first_snapshot(self):
        """No snapshot but the first one: as if the process had been killed at the end."""
        self._pipeline.wait()
        yield from ()

    with monkeypatch.context() as patch:
        patch.setattr(
            "cowclip_merlin.online.training.loop.StreamTrainer._finish",
            keep_first_snapshot,
        )
        killed = stream_trainer(run, settings, events, **more)
        killed.run()
        again = stream_trainer(run, settings, events, max_wait=0.0, catch_up=4)
        steps = again._journal.after(0)
        again.run()
    assert numbers(run / "snapshots") == [0] and again.trained == killed.trained > 900
    assert {step.factor for step in steps} == {1, 4}
    before = killed.trainer.state()
    for name, x in again.trainer.state().items():
        assert x.tobytes() == before[name].tobytes(), name


@pytest.mark.thorough
def test_other_batches_in_the_journal_than_the_settings_say(tmp_path, settings, events, whole):
    """A training with `--catch-up 4` is killed, and goes on with 2."""
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, 9)
        with pytest.raises(Killed):
            stream_trainer(tmp_path / "run", settings, events, catch_up=4).run()
    work = stream_trainer(tmp_path / "run", settings, events, catch_up=2)
    assert {step.factor for step in work._journal.after(0)} == {4}
    work.run()
    assert work.trained == EVENTS


@pytest.mark.thorough
def test_a_restart_refuses_the_messages_that_were_refused_before(tmp_path, settings, monkeypatch):
    """By the clock of the restart, a message a day ahead of the first process is in the past."""
    now = 1_700_000_000
    values = messages(range(EVENTS))
    for i in range(0, 500, 60):
        values[i] = json.dumps(event(i, time=now + 100_000)).encode()
    events, clock = log_of(tmp_path / "events", values), SimpleNamespace(now=now)
    monkeypatch.setattr(steps.time, "time", lambda: clock.now)
    stream_trainer(tmp_path / "whole", settings, events).run()
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, 45)
        with pytest.raises(Killed):
            stream_trainer(tmp_path / "run", settings, events).run()
    clock.now += 86_400
    again = stream_trainer(tmp_path / "run", settings, events)
    assert 600 < again._journal.after(0)[-1].until[0] < EVENTS
    again.run()
    assert again.trained == EVENTS - 9
    assert final_state(tmp_path / "run") == final_state(tmp_path / "whole")


@pytest.mark.thorough
def test_a_damaged_snapshot_is_set_aside(tmp_path, settings, events, whole):
    work = stream_trainer(tmp_path / "run", settings, events, snapshot_every=1e-9)
    work.run()
    *_, before, newest = sorted(numbers(tmp_path / "run" / "snapshots"))
    (tmp_path / "run" / "snapshots" / str(newest) / "manifest.json").write_text("{}")
    stream_trainer(tmp_path / "run", settings, events).run()
    assert final_state(tmp_path / "run") == whole
    names = {path.name for path in (tmp_path / "run" / "snapshots").iterdir()}
    assert names == {str(before), str(newest), f"damaged-{newest}"}


@pytest.mark.thorough
def test_a_start_from_a_run_that_never_came_is_made_later(tmp_path, settings):
    """SIGTERM while it waits for the first event must leave no snapshot of an untrained model."""
    from cowclip_merlin.system.signals import Stopped

    log, started = FileLog(tmp_path / "events"), []

    def work(wait):
        trainer = stream_trainer(tmp_path / "run", settings, log)
        trainer._start = started.append
        if wait:
            trainer.settings = replace(trainer.settings, until_end=False)
            trainer._stop.signal_number = signal.SIGTERM
        return trainer

    with pytest.raises(Stopped):
        work(wait=True).run()
    assert numbers(tmp_path / "run" / "snapshots") == [] and not started
    with pytest.raises(InputError, match="has no events"):
        work(wait=False).run()
    log.append(messages(range(50)))
    work(wait=False).run()
    assert started == [1_700_000_000]


@pytest.mark.thorough
def test_skip_goes_on_with_the_newest_event(tmp_path, settings, monkeypatch):
    log = log_of(tmp_path / "events", messages(range(500)))
    with monkeypatch.context() as patch:
        killed_at(patch, 20)
        with pytest.raises(Killed):
            stream_trainer(tmp_path / "run", settings, log).run()
    log.append(messages(range(500, 600)))
    work = stream_trainer(tmp_path / "run", settings, log, on_restart="skip")
    work.run()
    assert work.trained == 0
    log.append(messages(range(600, 664)))
    again = stream_trainer(tmp_path / "run", settings, log, on_restart="replay")
    again.run()
    assert again.trained == 600 + 64


@pytest.mark.thorough
def test_a_log_without_the_next_events_is_an_error(tmp_path, settings):
    folder = tmp_path / "events"
    log = FileLog(folder, segment_bytes=1)
    for first in range(0, 320, 32):
        log.append(messages(range(first, first + 32)))
    stream_trainer(tmp_path / "run", settings, log).run()
    for first in range(320, 640, 32):
        log.append(messages(range(first, first + 32)))
    log.trim((500, 480, 0))
    with pytest.raises(MessagesLost, match="begins at message 480, but message 320 "):
        stream_trainer(tmp_path / "run", settings, log).run()


def test_trim_removes_events_that_both_snapshots_hold(tmp_path, settings):
    log = FileLog(tmp_path / "events", segment_bytes=1)
    for first in range(0, 640, 32):
        log.append(messages(range(first, first + 32)))
    work = stream_trainer(tmp_path / "whole", settings, log, snapshot_every=1e-9, trim=True)
    work.run()
    kept = sorted(numbers(tmp_path / "whole" / "snapshots"))
    assert 0 < kept[0] < kept[1] == 640
    assert log.start()[0] == kept[0]


@pytest.mark.thorough
def test_a_signal_ends_it_with_a_snapshot(tmp_path, settings, events, whole, monkeypatch):
    from cowclip_merlin.online.training.trainer import StepPipeline
    from cowclip_merlin.system.signals import Stopped

    submit, count = StepPipeline.submit, itertools.count()

    def stop_at_tenth(self, *args):
        submit(self, *args)
        if next(count) == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(StepPipeline, "submit", stop_at_tenth)
        work = stream_trainer(tmp_path / "run", settings, events)
        with pytest.raises(Stopped):
            work.run()
    assert sorted(numbers(tmp_path / "run" / "snapshots")) == [0, work.trained]
    assert 11 * 32 <= work.trained < EVENTS
    stream_trainer(tmp_path / "run", settings, events).run()
    assert final_state(tmp_path / "run") == whole
