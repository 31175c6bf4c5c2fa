"""A training on a stream: each event once, also after kills; what servers get is the model."""

import itertools
import os
import random
import signal
from dataclasses import replace

import numpy as np
import pytest
from streams import FEATURES, final_state, log_of, messages, stream_trainer

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.logs.message_log import MessagesLost
from cowclip_merlin.online.serving_copy import DenseScorer
from cowclip_merlin.online.sync import sync_message
from cowclip_merlin.online.sync.publisher import last_sync
from cowclip_merlin.online.sync.sync_message import SyncMessage, changes_of
from cowclip_merlin.tables.serving_table import ServingTable
from cowclip_merlin.tables.snapshot import numbers
from cowclip_merlin.workflows.online.messages import encode_messages

EVENTS = 1000


@pytest.fixture
def events(tmp_path):
    """A log of 1,000 events, some of them twice, and some damaged messages."""
    values = messages(range(EVENTS))
    values[300:300] = [b"no event", *messages(range(280, 290))]
    return log_of(tmp_path / "events", values)


@pytest.fixture
def whole(tmp_path, settings, events):
    """The final state of a training that nobody stops."""
    stream_trainer(tmp_path / "whole", settings, events).run()
    return final_state(tmp_path / "whole")


def test_each_event_is_trained_once(tmp_path, settings, events, whole):
    """Against batches of the plain trainer."""
    from cowclip_merlin.online.trainer import OnlineTrainer

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


class Killed(BaseException):
    """In place of a signal that cannot be caught."""


def killed_at(monkeypatch, calls):
    """Kill the training at the n-th of the calls that change something."""
    from cowclip_merlin.online.streaming import batch_journal, snapshot_writer, step_pipeline

    count = itertools.count()

    def counted(function):
        def call(*args, **kwargs):
            if next(count) == calls:
                raise Killed
            return function(*args, **kwargs)

        return call

    for owner, name in (
        (batch_journal.BatchJournal, "note"),
        (batch_journal.BatchJournal, "begin"),
        (snapshot_writer.SnapshotWriter, "begin"),
        (step_pipeline.StepPipeline, "submit"),
        (FileLog, "append"),
    ):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


@pytest.mark.parametrize("seed", range(4))
def test_killed_anywhere_and_started_again_it_ends_the_same(
    tmp_path, settings, events, whole, seed, monkeypatch
):
    random_ = random.Random(seed)
    for _ in range(4):
        with monkeypatch.context() as patch:
            killed_at(patch, random_.randrange(60))
            work = stream_trainer(
                tmp_path / "run", settings, events, FileLog(tmp_path / "sync"), snapshot_every=1e-9
            )
            try:
                work.run()
            except Killed:
                continue
            break
    stream_trainer(tmp_path / "run", settings, events, FileLog(tmp_path / "sync")).run()
    assert final_state(tmp_path / "run") == whole


def test_smaller_and_larger_batches_are_the_same_after_a_restart(
    tmp_path, settings, events, monkeypatch
):
    """`max_wait` and `catch_up` cut batches by the clock; the journal knows them."""
    run, more = tmp_path / "run", {"max_wait": 1e-9, "catch_up": 4}

    def keep_first_snapshot(self):
        """No snapshot but the first one: as if the process had been killed at the end."""
        self._pipeline.wait()

    with monkeypatch.context() as patch:
        patch.setattr(
            "cowclip_merlin.online.streaming.stream_trainer.StreamTrainer._finish",
            keep_first_snapshot,
        )
        killed = stream_trainer(run, settings, events, **more)
        killed.run()
    before = {k: x.tobytes() for k, x in killed.trainer.state().items()}
    assert numbers(run / "snapshots") == [0] and killed.trained > 900
    again = stream_trainer(run, settings, events, max_wait=0.0, catch_up=4)
    batches = again._journal.after(0)
    assert {batch.factor for batch in batches} == {1, 4}
    for batch in batches:
        again._replay(batch)
    again._pipeline.wait()
    assert {k: x.tobytes() for k, x in again.trainer.state().items()} == before


class Server:
    """Applies all messages of a log, one after the other."""

    def __init__(self, trainer):
        dims = [table.shape[1] for table in trainer.tables]
        self.table = ServingTable(2, trainer.table.capacity, dims)
        self.scorer = DenseScorer(trainer.settings, trainer.features)
        self.kinds, self.infos = [], []

    def apply_all(self, log):
        position, last = log.start(), (0, -1)
        while found := log.read(position, most=7):
            for each in found:
                message = SyncMessage.decode(each.value)
                here = (message.generation, message.seq)
                assert here in ((last[0], last[1] + 1), (last[0] + 1, 0))
                last = here
                self.apply(message)
            position = found[-1].after

    def apply(self, message):
        self.kinds.append(message.kind)
        self.infos.append(message.info)
        if message.kind in (sync_message.GONE, sync_message.ROWS):
            self.table.apply(*changes_of(message))
        if message.kind == sync_message.DENSE:
            for i, variable in enumerate(self.scorer.variables):
                variable.assign(message.arrays[f"dense{i}"])

    def predict(self, batch):
        return self.scorer.score(self.table.read(batch.ids), batch.numbers)


@pytest.mark.parametrize("kills", [0, 2])
def test_servers_get_the_model(tmp_path, settings, events, kills, monkeypatch):
    sync = FileLog(tmp_path / "sync")
    for seed in range(kills):
        with monkeypatch.context() as patch:
            killed_at(patch, 40 + seed)
            with pytest.raises(Killed):
                stream_trainer(tmp_path / "run", settings, events, sync, snapshot_every=0.05).run()
    work = stream_trainer(tmp_path / "run", settings, events, sync, dense_every=3600)
    work.run()
    server = Server(work.trainer)
    server.apply_all(sync)
    batch, _ = encode_messages(messages(range(EVENTS - 200, EVENTS + 200)), FEATURES)
    np.testing.assert_allclose(
        server.predict(batch), work.trainer.predict(batch), atol=1e-6, rtol=0
    )
    assert len(server.table) == work.trainer.table.num_rows
    last = server.infos[-1]
    assert server.kinds[-1] == sync_message.SYNCED and last["dense"]
    assert last["trained"] == EVENTS and last["lag"] == 0
    assert tuple(last["position"]) == events.end()
    assert last_sync(sync).generation == kills + 1


def test_servers_that_begin_at_a_snapshot_get_the_model(tmp_path, settings, events):
    """The log is trimmed; the first messages that are left name a snapshot that is there."""
    sync = FileLog(tmp_path / "sync", segment_bytes=1)
    for _ in range(3):  # each of them writes a snapshot at its end
        events.append(messages(range(events.end()[0], events.end()[0] + 64)))
        work = stream_trainer(tmp_path / "run", settings, events, sync, snapshot_every=1e-9)
        work.run()
    position, snapshots, seen = sync.start(), [], []
    while found := sync.read(position, most=100):
        seen += [SyncMessage.decode(each.value) for each in found]
        position = found[-1].after
    assert seen[0].kind in (sync_message.GENERATION, sync_message.SNAPSHOT)
    snapshots = [m for m in seen if m.kind == sync_message.SNAPSHOT]
    assert len(snapshots) == 1 and seen[0].generation == 3
    assert snapshots[-1].info["snapshot"] in numbers(tmp_path / "run" / "snapshots")
    assert snapshots[-1].info["run"] == str(tmp_path / "run")
    after = seen[seen.index(snapshots[-1]) + 1 :]
    assert after[-1].kind == sync_message.SYNCED


def test_a_snapshot_that_takes_long_is_announced_with_what_changed_meanwhile(
    tmp_path, settings, events
):
    """Two snapshots overlap: the first is announced after the second has begun."""
    from cowclip_merlin.online.sync.publisher import Publisher
    from cowclip_merlin.online.trainer import OnlineTrainer

    trainer, log = OnlineTrainer(settings, FEATURES), FileLog(tmp_path / "sync")
    publisher = Publisher(log, trainer)
    publisher.begin(1, "run", 0)
    states, place = {}, {}
    for step in range(6):
        batch, _ = encode_messages(messages(range(32 * step, 32 * step + 32)), FEATURES)
        trainer.train(batch)
        if step in (1, 3):
            states[step] = {name: np.array(x) for name, x in trainer.state().items()}
            publisher.snapshot_begins(step)
        if step in (4, 5):
            publisher.wait()
            assert publisher.snapshot_ends("run", {4: 1, 5: 3}[step])
            publisher.wait()
            place[{4: 1, 5: 3}[step]] = log.end()
        publisher.wait()
        assert publisher.sync({"position": []}, dense=True)
    publisher.wait()
    publisher.close()
    batch, _ = encode_messages(messages(range(300)), FEATURES)
    for number, state in states.items():
        server, position = Server(trainer), place[number]
        used = {f"table{i}": state[f"table.table{i}.w"] for i in range(len(trainer.tables))}
        names = ("ids", "fields", "free")
        server.table.restore({name: state[f"table.{name}"] for name in names} | used)
        while found := log.read(position, most=10):
            for each in found:
                server.apply(SyncMessage.decode(each.value))
            position = found[-1].after
        np.testing.assert_allclose(server.predict(batch), trainer.predict(batch), atol=1e-6, rtol=0)


def test_other_batches_in_the_journal_than_the_settings_say(tmp_path, settings, events, whole):
    """A training with `--catch-up 4` is killed, and goes on with 2."""
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, 9)
        with pytest.raises(Killed):
            stream_trainer(tmp_path / "run", settings, events, catch_up=4).run()
    work = stream_trainer(tmp_path / "run", settings, events, catch_up=2)
    assert {batch.factor for batch in work._journal.after(0)} == {4}
    work.run()
    assert work.trained == EVENTS


def test_a_damaged_snapshot_is_set_aside(tmp_path, settings, events, whole):
    work = stream_trainer(tmp_path / "run", settings, events, snapshot_every=1e-9)
    work.run()
    *_, before, newest = sorted(numbers(tmp_path / "run" / "snapshots"))
    (tmp_path / "run" / "snapshots" / str(newest) / "manifest.json").write_text("{}")
    stream_trainer(tmp_path / "run", settings, events).run()
    assert final_state(tmp_path / "run") == whole
    names = {path.name for path in (tmp_path / "run" / "snapshots").iterdir()}
    assert names == {str(before), str(newest), f"damaged-{newest}"}


def test_the_generation_grows_although_the_log_of_servers_was_emptied(tmp_path, settings, events):
    for generation in (1, 2):
        sync = FileLog(tmp_path / f"sync{generation}")
        stream_trainer(tmp_path / "run", settings, events, sync).run()
        assert last_sync(sync).generation == generation


def test_a_start_from_a_run_that_never_came_is_made_later(tmp_path, settings):
    """SIGTERM while it waits for the first event must leave no snapshot of an untrained model."""
    from cowclip_merlin.training.graceful_stop import Stopped

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
    with pytest.raises(InputError, match="has no events; write some first"):
        work(wait=False).run()
    log.append(messages(range(50)))
    work(wait=False).run()
    assert started == [1_700_000_000]


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


def test_a_log_without_the_next_events_is_an_error(tmp_path, settings):
    folder = tmp_path / "events"
    log = FileLog(folder, segment_bytes=1)
    for first in range(0, 320, 32):
        log.append(messages(range(first, first + 32)))
    stream_trainer(tmp_path / "run", settings, log).run()
    for first in range(320, 640, 32):
        log.append(messages(range(first, first + 32)))
    log.trim((500, 480, 0))
    with pytest.raises(MessagesLost, match="begins at message 480, but message 320 is asked for"):
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


def test_the_log_of_another_run_is_refused(tmp_path, settings, events):
    sync = FileLog(tmp_path / "sync")
    stream_trainer(tmp_path / "run", settings, events, sync).run()
    with pytest.raises(InputError, match=r"has the model of .*run; use another --to"):
        stream_trainer(tmp_path / "other", settings, events, sync)


def test_a_signal_ends_it_with_a_snapshot(tmp_path, settings, events, whole, monkeypatch):
    from cowclip_merlin.online.streaming.step_pipeline import StepPipeline
    from cowclip_merlin.training.graceful_stop import Stopped

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
    assert numbers(tmp_path / "run" / "snapshots") == [0, work.trained]
    assert 11 * 32 <= work.trained < EVENTS
    stream_trainer(tmp_path / "run", settings, events).run()
    assert final_state(tmp_path / "run") == whole
