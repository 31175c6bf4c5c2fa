"""Steps of a topic with partitions: each event once, the same in every process that takes them.

KILLS=30 python -m pytest tests/online/training/test_partitions.py

`KILLS` is how many a training is killed: 2 without it.
"""

import json
import os
import random
import tempfile
from pathlib import Path

import pytest
from fake_kafka import Broker
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from streams import (
    FEATURES,
    Killed,
    event,
    final_state,
    killed_at,
    log_of,
    messages,
    stream_trainer,
)

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import open_log
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.training import steps
from cowclip_merlin.online.training.repeats import RepeatFilter
from cowclip_merlin.online.training.steps import EventReader, StepJournal

KILLS = int(os.environ.get("KILLS", "2"))
MORE = 300  # events before each kill
CALLS = 14  # of those that change something, before a kill at most
NOW, DAY = 1_700_000_000, 86_400


class Topic:
    """Three partitions, and the events that they were given."""

    def __init__(self, monkeypatch):
        self.broker = Broker().install(monkeypatch)
        self.parts, self.values, self.random = self.broker.make("events", 3), [], random.Random(1)

    def open(self):
        return open_log("kafka://h/events", several=True)

    def add(self, number):
        new = messages(range(len(self.values), len(self.values) + number))
        self.values += new
        for i, value in enumerate(new):
            self.random.choices(self.parts, [1, 2, 4])[0].add(value, time=i // 3)


class Taken:
    """The messages of all steps, which are the same in every process that takes them."""

    def __init__(self, monkeypatch):
        self.of_step, take = {}, EventReader.take

        def watched(reader, step):
            events = take(reader, step)
            times = [] if events is None else (events.times - NOW).tolist()
            assert self.of_step.setdefault(step.until, times) == times
            return events

        monkeypatch.setattr(EventReader, "take", watched)

    def order(self):
        return [time for _, times in sorted(self.of_step.items()) for time in times]


@pytest.mark.runs
@pytest.mark.thorough
def test_each_event_is_trained_once_in_one_order(tmp_path, settings, monkeypatch):
    """As a training on a single log that has the events in the order of the steps."""
    run, topic = tmp_path / "run", Topic(monkeypatch)
    with monkeypatch.context() as watch:
        taken = Taken(watch)
        for _ in range(KILLS):
            topic.add(MORE)
            with monkeypatch.context() as patch:
                killed_at(patch, topic.random.randrange(3, CALLS))
                with pytest.raises(Killed):
                    stream_trainer(run, settings, topic.open(), snapshot_every=1e-9).run()
        stream_trainer(run, settings, topic.open()).run()
    order = taken.order()
    assert sorted(order) == [*range(len(topic.values))] != order
    stream_trainer(tmp_path / "whole", settings, log_of(tmp_path / "one", messages(order))).run()
    assert final_state(run) == final_state(tmp_path / "whole")


@pytest.mark.runs
@pytest.mark.thorough
def test_lost_messages_are_refused_and_skip_goes_on(tmp_path, settings, monkeypatch):
    run, topic = tmp_path / "run", Topic(monkeypatch)
    topic.add(100)
    stream_trainer(run, settings, topic.open()).run()
    for part in topic.parts:
        part.messages, part.end = [], 0
    with pytest.raises(InputError, match=r"/0: ends at message 0, but message \d+ is asked for"):
        stream_trainer(run, settings, topic.open()).run()
    topic.add(50)
    log = topic.open()
    end, later = log.end, iter([64])

    def end_before_more():
        """The place to go on from; other events come then."""
        place = end()
        topic.add(next(later, 0))
        return place

    log.end = end_before_more
    work = stream_trainer(run, settings, log, on_restart="skip")
    work.run()
    assert work.trained == 164
    topic.add(32)
    work = stream_trainer(run, settings, topic.open())
    work.run()
    assert work.trained == 196


class Stream:
    """Processes that cut a topic into steps until they are killed. They train nothing."""

    def __init__(self, folder, draw, patch):
        self.folder, self.draw, self.kills = Path(folder), draw, 0
        self.broker = Broker(draw.random()).install(patch)
        self.parts, self.now, self.sent = self.broker.make("events", 3), NOW, 0
        patch.setattr(steps.time, "time", lambda: self.now)
        self.snapshot = {"position": None, "repeats": {}, "trained": []}
        self.seen = {}

    def add(self):
        """Append events, repeats of some, damaged messages, and some ahead of the clock."""
        for _ in range(self.draw.randrange(40)):
            i, kind = self.sent, self.draw.random()
            self.sent += 1
            row = event(i, time=self.now + (2 * DAY if kind < 0.1 else 0), key=f"r{i}")
            if kind > 0.9:
                row["key"] = f"r{self.draw.randrange(i + 1)}"
            value = b"damaged" if 0.1 < kind < 0.2 else json.dumps(row).encode()
            time = self.draw.choice([None, self.now, self.now - 5])
            self.draw.choice(self.parts).add(value, time=time, gap=self.draw.choice([0, 0, 0, 2]))

    def die(self):
        if self.draw.random() < 0.08:
            self.kills += 1
            raise Killed

    def run(self, rounds, *, lives=False):
        """A process: execute the noted steps, then choose new ones; die anywhere, or do not."""
        die = (lambda: None) if lives else self.die
        log, saved = open_log("kafka://h/events", several=True), self.snapshot
        repeats, damaged = RepeatFilter(10**8, 1000), DamagedMessages(self.folder / "damaged")
        if saved["repeats"]:
            repeats.restore(saved["repeats"])
        position, trained = saved["position"] or log.start(), list(saved["trained"])
        reader = EventReader(log, FEATURES, position, damaged=damaged, repeats=repeats)
        journal, number = StepJournal(self.folder / "steps"), len(saved["trained"])

        def execute(step):
            events = reader.take(step)
            batch = [] if events is None else events.keys.tolist()
            assert self.seen.setdefault(len(trained), (step, batch)) == (step, batch)
            trained.append(batch)

        for step in journal.after(number):
            execute(step)
            die()
        journal.begin(number, keep=[number])
        for _ in range(rounds):
            size, rest = self.draw.randint(1, 9), lives or self.draw.random() < 0.3
            if (step := reader.choose(size, wait=0, rest=rest)) is None:
                break
            die()
            journal.note(step)
            die()
            execute(step)
            self.now += self.draw.choice([0, 1, DAY])
            if self.draw.random() < 0.2:
                state = {name: array.copy() for name, array in repeats.state().items()}
                self.snapshot = {"position": reader.position, "repeats": state}
                self.snapshot["trained"] = list(trained)
                die()
                journal.begin(len(trained), keep=[len(trained)])
        journal.close()
        return trained, reader


@how(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_step_is_the_same_in_every_process(seed):
    """Whatever comes when, and whoever is killed: no event is lost or there twice."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        stream = Stream(folder, random.Random(seed), patch)
        for _ in range(8):
            stream.add()
            try:
                stream.run(20)
            except Killed:
                continue
        trained, reader = stream.run(10_000, lives=True)
        assert reader.at_end() and reader.position == reader._log.end()
        keys = [key for batch in trained for key in batch]
        assert len(keys) == len({*keys})
        again, _ = stream.run(0, lives=True)
        assert again == trained


@how(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_worker_that_reads_ahead_takes_the_same_steps(seed):
    """It has read other messages than worker 0 when it hears of a step: fewer or more."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        stream = Stream(folder, random.Random(seed), patch)

        def reader():
            log, none = open_log("kafka://h/events", several=True), DamagedMessages(None)
            repeats = RepeatFilter(10**6, 1000)
            return EventReader(log, FEATURES, (0,), damaged=none, repeats=repeats)

        first, other, taken = reader(), reader(), 0
        for _ in range(30):
            stream.add()
            patch.setattr(steps, "_READ_AT_LEAST", stream.draw.randint(1, 60))
            if stream.draw.random() < 0.5:
                other.read_ahead(stream.draw.randint(0, 60))
            stream.add()
            step = first.choose(stream.draw.randint(1, 60), wait=0, rest=stream.draw.random() < 0.3)
            if step is not None:
                one, two = first.take(step), other.take(step)
                assert (one is None) == (two is None)
                if one is not None:
                    assert one.keys.tolist() == two.keys.tolist()
                    taken += len(one)
        assert taken > 0
