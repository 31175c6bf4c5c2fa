"""What all kinds of logs promise, held against a plain list; and what their servers do."""

import importlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_servers import KafkaServer, RedisServer, later

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import open_log
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessagesLost, lag

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), VALUES),
        st.tuples(st.just("read"), st.integers(0, 60), st.integers(1, 60)),
        st.tuples(st.just("trim"), st.integers(0, 60)),
        st.tuples(st.just("open")),
    ),
    min_size=3,
    max_size=14,
)


def read_all(log, position, most=7, total=10**6):
    """All messages after a position, or so many of them, in several reads."""
    found = []
    while part := log.read(position, min(most, total - len(found))):
        assert len(part) <= min(most, total - len(found))
        found += part
        if len(found) == total:
            break
        position = part[-1].after
    return found


class Model:
    """A log and a list of what must be in it; `places[i]` is the place after i messages."""

    def __init__(self, kind):
        self.kind, self.url = kind, kind.new_url()
        self.log = kind.open(self.url, create=True)
        self.values, self.places, self.trimmed = [], [self.log.start()], 0

    def append(self, values):
        after = self.log.append(values)
        self.values += values
        read = read_all(self.log, self.places[-1], len(values))
        assert [m.value for m in read] == values and read[-1].after == after == self.log.end()
        self.places += [message.after for message in read]
        assert [place[0] for place in self.places] == list(range(len(self.places)))
        assert self.places == sorted(self.places)

    def read(self, first, most):
        first = min(first, len(self.values))
        place = tuple(json.loads(json.dumps(self.places[first])))
        try:
            found = read_all(self.log, place, most, total=most)
        except MessagesLost as error:
            assert first < self.trimmed and self.log.name in str(error)
            return
        assert [m.value for m in found] == self.values[first : first + most]
        assert [m.after for m in found] == self.places[first + 1 : first + 1 + most]

    def trim(self, first):
        if self.kind.trims:
            first = min(first, len(self.values))
            self.trimmed = max(self.trimmed, first)
            self.log.trim(self.places[first])

    def open(self):
        self.log.close()
        self.log = self.kind.open(self.url)

    def check(self):
        start, end = self.log.start(), self.log.end()
        assert end == self.places[-1] and start[0] <= self.trimmed
        assert lag(start, end) == len(self.values) - start[0]
        read = [m.value for m in read_all(self.log, start)]
        assert len(read) == end[0] - start[0]
        assert not Counter(self.values[self.trimmed :]) - Counter(read)
        if self.kind.in_one_piece:
            assert read == self.values[start[0] :]
        assert self.log.read(end, 5) == []


def test_any_sequence_of_steps_is_that_of_a_list(kind):
    @settings(max_examples=kind.examples)
    @given(steps=STEPS)
    def check(steps):
        model = Model(kind)
        for name, *arguments in steps:
            getattr(model, name)(*arguments)
        model.check()
        model.log.close()

    check()


APPENDS = """
import random, sys
from cowclip_merlin.online import open_log
url, me = sys.argv[1:]
log, rng = open_log(url, create=True), random.Random(me)
for number in range(30):
    values = [f"{me}-{number}-{i}".encode() for i in range(rng.randint(1, 9))]
    print(log.append(values)[0], values[-1].decode())
"""


@pytest.mark.system
def test_several_processes_append_at_once(kind):
    if not kind.in_one_piece:
        pytest.skip("messages of one writer have no order in several partitions")
    url = kind.new_url()
    log = kind.open(url, create=True)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDS, url, str(me)], stdout=subprocess.PIPE, text=True
        )
        for me in range(3)
    ]
    told = [writer.communicate(timeout=300)[0].splitlines() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    values = [message.value.decode() for message in read_all(log, log.start(), most=100)]
    assert len(set(values)) == len(values) == log.end()[0]
    for me, lines in enumerate(told):
        assert len(lines) == 30
        numbers = [tuple(map(int, v.split("-")[1:])) for v in values if v.startswith(f"{me}-")]
        assert numbers == sorted(numbers)
        for line in lines:  # the place that `append` returned is that after its last message
            count, last = line.split()
            assert values[int(count) - 1] == last
    log.close()


def test_a_waiting_reader_gets_a_message_soon_after_its_append(kind):
    url = kind.new_url()
    writer = kind.open(url, create=True)
    reader, place, found = kind.open(url), writer.end(), []
    thread = threading.Thread(target=lambda: found.extend(reader.read(place, 10, wait=300)))
    thread.start()
    time.sleep(0.05)  # so that it waits, most times
    started = time.monotonic()
    writer.append([b"now"])
    thread.join(300)
    assert [m.value for m in found] == [b"now"] and time.monotonic() - started < 100
    assert reader.read(found[0].after, 10, wait=0.05) == []
    reader.close()
    writer.close()


def test_large_and_empty_messages_come_back(kind):
    log = kind.open(kind.new_url(), create=True)
    values = [b"", b"x" * 2_500_000, b"", bytes(200_000), *[b"r" * 200_000] * 20, b"end"]
    assert log.append([]) == log.start() == log.end()
    assert log.append(values)[0] == len(values)
    assert [m.value for m in read_all(log, log.start(), most=100)] == values
    log.close()


def test_a_log_that_is_not_there_is_refused_and_one_without_messages_is_not(kind):
    url = kind.new_url()
    with pytest.raises(InputError, match=r"no such .*writer first"):
        kind.open(url)
    kind.open(url, create=True).close()
    empty = kind.open(url)
    assert empty.start() == empty.end() and empty.start()[0] == 0
    assert empty.read(empty.start(), 5) == []
    kind.open(url, create=True).close()  # again
    empty.close()


def test_places_of_other_logs_are_refused(kind):
    log = kind.open(kind.new_url(), create=True)
    place = log.append([b"a"] * 3)
    other = kind.open(kind.new_url(), create=True)
    for wrong in (place, (*place, 1)):
        with pytest.raises(MessagesLost) as told:
            other.read(wrong, 1)
        assert other.name in str(told.value) and "\n" not in str(told.value)
    other.append([b"b"])
    with pytest.raises(MessagesLost):
        other.read(place, 1)
    for each in (log, other):
        each.close()


def test_reading_past_a_trim_is_an_error_and_the_rest_stays(kind):
    if not kind.trims:
        pytest.skip("tansu 0.6.0 has no DeleteRecords")
    log = kind.open(kind.new_url(), create=True)
    places = [log.append([b"%d" % i * 100]) for i in range(40)]
    log.trim(places[29])
    assert 0 < log.start()[0] <= 30
    with pytest.raises(MessagesLost, match="begins at message"):
        log.read((0,) * len(places[0]), 10)
    assert [m.after for m in read_all(log, places[29])] == places[30:]
    assert len(read_all(log, log.start())) == 40 - log.start()[0]
    log.trim(log.end())
    assert read_all(log, log.end()) == [] and log.append([b"new"])[0] == 41
    log.close()


@pytest.fixture(params=["redis", "kafka"])
def dying(request, tmp_path, monkeypatch):
    """A server of its own, which a test may kill; and makes clients impatient."""
    server = {"redis": RedisServer, "kafka": KafkaServer}[request.param](tmp_path)
    module = importlib.import_module(f"cowclip_merlin.online.logs.{request.param}_log")
    yield server, lambda: monkeypatch.setattr(module, "TIMEOUT", 0.7)
    server.kill()


@pytest.mark.system
def test_a_server_that_hangs_is_unavailable_and_then_there_again(dying):
    server, make_impatient = dying
    place = open_log(server.url("a"), create=True).append([b"a"])
    make_impatient()
    log = later(lambda: open_log(server.quick(server.url("a"))))
    start = later(log.start)
    assert [m.value for m in later(lambda: log.read(start, 9))] == [b"a"]
    server.pause()
    for call in (
        log.end,
        log.start,
        lambda: log.read(place, 1, wait=60),
        lambda: log.append([b""]),
    ):
        with pytest.raises(LogUnavailable, match=rf"^{log.name}: .*is the server running"):
            call()
    server.go_on()
    assert later(lambda: log.append([b"b"]))[0] >= 2
    assert later(lambda: log.read(place, 1)) and later(lambda: log.read(start, 1))
    log.close()


@pytest.mark.system
def test_a_waiting_reader_notices_the_end_of_the_server(dying):
    server, make_impatient = dying
    log, told = open_log(server.url("a"), create=True), []
    make_impatient()

    def wait():
        try:
            log.read(log.start(), 1, wait=600)
        except LogUnavailable as error:
            told.append(error)

    reader = threading.Thread(target=wait)
    reader.start()
    server.kill()
    reader.join(60)
    assert len(told) == 1
