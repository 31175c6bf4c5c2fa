"""Steps of a log: every whole event once, in order, whatever the size of pieces and batches."""

import json
import time

from hypothesis import given, settings
from hypothesis import strategies as st
from streams import FEATURES, event, log_of, messages, next_batch

from cowclip_merlin.online import FileLog
from cowclip_merlin.online.logs import message_log
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.online.training import steps
from cowclip_merlin.online.training.repeats import RepeatFilter
from cowclip_merlin.online.training.steps import EventReader

DAMAGED = b'{"click": 2}'


def reader_of(log, folder, position=None, **more):
    damaged = DamagedMessages(folder / "damaged.jsonl")
    return EventReader(log, FEATURES, position or log.start(), damaged=damaged, **more)


def times(batch):
    return (batch.times - 1_700_000_000).tolist()


@settings(max_examples=60)
@given(
    kinds=st.lists(st.sampled_from(["event", "event", "repeat", "damaged"]), max_size=60),
    sizes=st.lists(st.integers(1, 17), min_size=1, max_size=8),
)
def test_batches_are_the_events_in_order(tmp_path_factory, kinds, sizes):
    folder = tmp_path_factory.mktemp("log")
    values, wanted = [], []
    for kind in kinds:
        if kind == "event":
            wanted.append(len(wanted))
            values += messages([wanted[-1]])
        elif kind == "damaged":
            values.append(DAMAGED)
        elif wanted:
            values += messages([wanted[len(wanted) // 2]])
    log = log_of(folder / "log", values)
    filter_ = RepeatFilter(1000, 100)
    reader, found, i = reader_of(log, folder, repeats=filter_), [], 0
    while (batch := next_batch(reader, sizes[i % len(sizes)], wait=0)) is not None:
        assert len(batch) == sizes[i % len(sizes)]
        found += times(batch)
        # Another reader goes on from here with the same events.
        again = reader_of(log, folder, reader.position)
        ahead = next_batch(again, 1, wait=0)
        if ahead is not None and times(ahead)[0] not in found:
            assert times(ahead)[0] == len(found)
        i += 1
    rest = next_batch(reader, 100, wait=0, rest=True)
    found += times(rest) if rest is not None else []
    assert found == wanted
    assert reader.at_end() and reader.lag() == 0
    assert reader.position == log.end() or not values or not wanted


def test_a_smaller_batch_after_the_longest_wait(tmp_path):
    log = log_of(tmp_path / "log", messages(range(5)))
    reader = reader_of(log, tmp_path)
    assert next_batch(reader, 8, max_wait=0, wait=0) is None
    assert reader.pending == 5
    batch = next_batch(reader, 8, max_wait=1e-6, wait=0)
    assert times(batch) == [0, 1, 2, 3, 4] and reader.pending == 0


def test_damaged_messages_are_counted_and_set_aside_once(tmp_path):
    values = [*messages(range(3)), DAMAGED, b"\xff", *messages(range(3, 6))]
    log = log_of(tmp_path / "log", values)
    for _ in range(2):  # the second one reads them again
        damaged = DamagedMessages(tmp_path / "damaged.jsonl")
        reader = EventReader(log, FEATURES, log.start(), damaged=damaged)
        assert times(next_batch(reader, 6, wait=0)) == [0, 1, 2, 3, 4, 5]
        assert damaged.count == 2
    lines = [json.loads(line) for line in (tmp_path / "damaged.jsonl").read_text().splitlines()]
    assert [line["after"][0] for line in lines] == [4, 5]
    assert lines[0]["reason"].startswith("no 'user'; ")
    assert lines[1]["text"] == "\\xff"


def test_a_line_that_a_killed_process_left_is_ended(tmp_path):
    file = tmp_path / "damaged.jsonl"
    file.write_text('{"after": [1], "reason')
    log = log_of(tmp_path / "log", [b"x", *messages([0])])
    damaged = DamagedMessages(file)
    next_batch(EventReader(log, FEATURES, log.start(), damaged=damaged), 1, wait=0)
    first, second = file.read_text().splitlines()
    assert first == '{"after": [1], "reason' and json.loads(second)["after"][0] == 1


def test_bytes_of_damaged_messages_that_are_no_utf8_are_passed_over(tmp_path):
    file = tmp_path / "damaged.jsonl"
    file.write_bytes(b'{"after": [1, 1], "text": "\xff"}\n')
    log = log_of(tmp_path / "log", [b"x", b"y", *messages([0])])
    next_batch(EventReader(log, FEATURES, log.start(), damaged=DamagedMessages(file)), 1, wait=0)
    assert [json.loads(line)["after"][0] for line in file.read_bytes().splitlines()[1:]] == [2]


def test_messages_without_events_do_not_keep_the_caller(tmp_path):
    """A log in which damaged messages come all the time."""

    class Endless(FileLog):
        def read(self, position, most, wait=0.0):
            self.append([DAMAGED] * 5)
            return super().read(position, most, wait)

    reader = reader_of(Endless(tmp_path / "log"), tmp_path)
    for _ in range(3):
        assert reader.take(reader.choose(4, wait=0.01)) is None
    assert reader.position[0] >= 15


def test_the_clock_of_a_step_says_what_is_ahead(tmp_path, monkeypatch):
    """A restart refuses what was refused then, and what comes later by the clock of then."""
    later = int(time.time()) + 2 * 86400
    rows = [event(0), event(1, time=later), event(2), event(4), event(3, time=later)]
    log = log_of(tmp_path / "log", [json.dumps(row).encode() for row in rows])
    reader, again = reader_of(log, tmp_path), reader_of(log, tmp_path)
    first = reader.choose(2, wait=0)
    assert times(reader.take(first)) == [0, 2]
    monkeypatch.setattr(steps.time, "time", lambda: later)
    second = reader.choose(2, wait=0)
    assert times(reader.take(second)) == [4, later - 1_700_000_000]
    monkeypatch.undo()
    assert times(again.take(first)) == [0, 2] and again._damaged.count == 1
    line = (tmp_path / "damaged.jsonl").read_text().splitlines()[0]
    assert "in the future" in json.loads(line)["reason"]
    assert times(again.take(second)) == [4, later - 1_700_000_000]


def test_a_log_that_does_not_answer_is_asked_again(tmp_path, monkeypatch):
    class Away:
        def __init__(self, log):
            self.log, self.calls = log, 0

        def __getattr__(self, name):
            return getattr(self.log, name)

        def read(self, *args):
            self.calls += 1
            if self.calls % 3:
                raise LogUnavailable("redis://h: does not answer")
            return self.log.read(*args)

    monkeypatch.setattr(message_log, "LONGEST_PAUSE", 0.0)
    lines = []
    log = Away(log_of(tmp_path / "log", messages(range(10))))
    reader = reader_of(log, tmp_path, warn=lines.append)
    batch = None
    while batch is None:
        batch = next_batch(reader, 10, wait=0)
    assert times(batch) == list(range(10))
    assert lines[0] == "redis://h: does not answer; training waits"
