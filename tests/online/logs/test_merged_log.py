"""Several logs as one: the order is repeated after a kill at any moment, and no message is lost."""

import json
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.merging import merge_order
from cowclip_merlin.online.logs.merging.followed_log import FollowedLog
from cowclip_merlin.online.logs.merging.merged_log import SLACK, MergedLog
from cowclip_merlin.online.logs.message_log import LogUnavailable, Message, MessagesLost


class GapLog:
    """A log in memory. Its messages lie at offsets with gaps, and have times, as in Kafka."""

    def __init__(self, name="part"):
        self.name, self.messages, self.first, self.last = name, [], 0, 0
        self.is_away, self.reads = False, 0

    def add(self, value, gap=0, time=None):
        self.last += gap + 1
        self.messages.append(Message((self.last,), value, time))

    def append(self, values):
        for value in values:
            self.add(value)
        return self.end()

    def read(self, position, most, wait=0.0):
        self.reads += 1
        if self.is_away:
            raise LogUnavailable(f"{self.name}: away")
        if position[0] < self.first or position[0] > self.last:
            raise MessagesLost(f"{self.name}: message {position[0]} is not there")
        return [message for message in self.messages if message.after > position][:most]

    def past_gaps(self, position):
        later = [message for message in self.messages if message.after > position]
        return position if later else (self.last,)

    def start(self):
        return (self.first,)

    def end(self):
        return (self.last,)

    def trim(self, position):
        self.first = max(self.first, position[0])
        self.messages = [m for m in self.messages if m.after[0] > self.first]

    def close(self):
        pass


def merged(parts, file, turn=2):
    return MergedLog(parts, name="topic", order=file, turn=turn)


def values_of(messages):
    return [message.value for message in messages]


def read_all(log, position, most=10**6):
    found = []
    while part := log.read(position, most):
        found += part
        position = part[-1].after
    return found


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 3 * SLACK)),
        st.tuples(st.just("read"), st.integers(1, 7)),
        st.tuples(st.just("gaps")),
        st.tuples(st.just("kill"), st.integers(0, 20), st.integers(0, 40)),
        st.tuples(st.just("go_back"), st.integers(0, 20)),
        st.tuples(st.just("keep"), st.integers(0, 20)),
    ),
    min_size=5,
    max_size=60,
)


class Reader:
    """A reader that keeps all messages that were ever returned: the slow reference."""

    def __init__(self, folder):
        self.parts, self.file = [GapLog(f"part {i}") for i in range(3)], folder / "order.txt"
        self.file.unlink(missing_ok=True)
        self.count = 0
        self.log = merged(self.parts, self.file)
        self.places = [self.log.start()]  # before the first, and after each message or gap
        self.seen, self.at, self.kept = [], 0, 0  # seen[i]: up to places[i + 1]; None is a gap

    def add(self, part, gap, time):
        self.parts[part].add(b"%d" % self.count, gap, time)
        self.count += 1

    def read(self, most):
        found = self.log.read(tuple(json.loads(json.dumps(self.places[self.at]))), most)
        for message in found:
            while self.at < len(self.seen) and self.seen[self.at] is None:
                self.at += 1
            if self.at < len(self.seen):  # it was returned before
                assert message.value == self.seen[self.at]
                assert message.after == self.places[self.at + 1]
            else:
                assert message.after > self.places[-1]
                self.seen.append(message.value)
                self.places.append(message.after)
            self.at += 1
        return found

    def gaps(self):
        self.read(1000)
        after = self.log.past_gaps(self.places[self.at])
        if after != self.places[self.at]:
            if self.at == len(self.seen):
                self.seen.append(None)
                self.places.append(after)
                self.at += 1
            else:  # gaps after gaps were seen before
                assert set(self.seen[self.at : self.places.index(after)]) == {None}
                self.at = self.places.index(after)

    def kill(self, back, torn):
        """A new process reads the file, of which the last line may not be whole."""
        self.log.close()
        if self.file.exists() and torn < 10:
            with self.file.open("a") as stream:
                stream.write("1 12"[:torn])
        self.log = merged(self.parts, self.file)
        self.log.start()
        self.go_back(back)
        self.log.keep_from(self.places[self.at], forget=False)

    def go_back(self, back):
        self.at = max(self.kept, self.at - back)

    def keep(self, back):
        self.kept = max(self.kept, self.at - back)
        self.log.keep_from(self.places[self.kept])

    def check(self):
        while self.read(1000):
            pass
        seen = [value for value in self.seen if value is not None]
        assert sorted(seen, key=int) == [b"%d" % i for i in range(self.count)]
        assert self.places == sorted(self.places)
        for part in self.parts:  # each log keeps its order
            mine = [m.value for m in part.messages]
            assert [value for value in seen if value in set(mine)] == mine


@pytest.mark.parametrize("most_lines", [3, 10_000])
def test_the_order_is_repeated_after_kills_at_any_moment(tmp_path, monkeypatch, most_lines):
    monkeypatch.setattr(merge_order, "MANY", most_lines)

    first, later = ("add", 0, 0, 0), ("add", 1, 0, 0)

    @settings(max_examples=150)
    @given(steps=STEPS)
    @example(steps=[*[first, ("read", 1)] * 4, ("kill", 0, 40), later, ("go_back", 1)])
    def check(steps):
        reader = Reader(tmp_path)
        for name, *arguments in steps:
            getattr(reader, name)(*arguments)
        reader.check()

    check()


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 10**6), max_size=30), min_size=1, max_size=4))
def test_messages_come_in_the_order_of_their_times(times):
    """A backlog with a turn of 1 and without slack is a merge of sorted lists."""
    parts = [GapLog() for _ in times]
    for part, each in zip(parts, times):
        for time in sorted(each):
            part.add(b"%d" % time, time=time)
    found = read_all(merged(parts, None, turn=1), (0,), most=7)
    assert [m.time for m in found] == sorted(t for each in times for t in each)


def test_a_turn_ends_where_another_log_has_older_messages(tmp_path):
    parts = [GapLog(), GapLog()]
    for i in range(100):
        parts[0].add(b"slow", time=1000 * i)
        parts[1].add(b"fast", time=i)
    found = values_of(read_all(merged(parts, None, turn=64), (0,)))
    assert found == [b"slow", *[b"fast"] * 100, *[b"slow"] * 99]


def test_logs_that_were_added_are_read_from_their_start(tmp_path):
    """From a topic with one partition, whose positions have one number, to three."""
    parts, file = [GapLog(), GapLog(), GapLog()], tmp_path / "order.txt"
    parts[0].append([b"a", b"b"])
    place = parts[0].read((0,), 1)[-1].after
    parts[1].append([b"c"])
    two = merged(parts[:2], file)
    two.keep_from(place)
    found = read_all(two, place)
    assert sorted(values_of(found)) == [b"b", b"c"]
    two.close()
    parts[2].append([b"d"])
    three = merged(parts, file)
    assert values_of(read_all(three, found[-1].after)) == [b"d"]
    assert values_of(read_all(three, place)) == [*values_of(found), b"d"]
    end = three.end()
    three.close()
    with pytest.raises(MessagesLost, match="has 2 partitions, but 3 were read") as told:
        merged(parts[:2], file).read(end, 1)
    assert "\n" not in str(told.value)
    with pytest.raises(MessagesLost, match="has 2 partitions, but 3 were read"):
        read_all(merged(parts[:2], file), place)


def test_an_order_that_is_lost_is_one_line(tmp_path):
    parts, file = [GapLog(), GapLog()], tmp_path / "order.txt"
    log = merged(parts, file)
    log.append([b"%d" % i for i in range(9)])
    place = log.read(log.start(), 5)[-1].after
    log.close()
    file.unlink()
    log = merged(parts, file)
    with pytest.raises(MessagesLost, match=r"order .* is not known.*skip") as told:
        log.keep_from(place)
    assert "\n" not in str(told.value)
    log.start()
    with pytest.raises(MessagesLost, match=r"order .* is not known"):
        log.keep_from(place)
    assert len(read_all(log, place)) == 4  # a reader that repeats nothing goes on
    log.close()
    file.write_text("[[0], [0]]\n1 x\n1 2\n")
    with pytest.raises(InputError, match=r"damaged.*skip"):
        merged(parts, file).start()


def test_a_new_process_forgets_no_order_that_an_older_place_needs(tmp_path, monkeypatch):
    """A training goes on from its newest snapshot, and a rollback then from an older one."""
    monkeypatch.setattr(merge_order, "MANY", 3)
    parts, file = [GapLog(), GapLog(), GapLog()], tmp_path / "order.txt"
    log = merged(parts, file)
    for i in range(4):
        parts[0].add(b"%d" % i, time=0)
        places = [message.after for message in read_all(log, log.start())]
    log.close()
    parts[1].add(b"late", time=0)  # a new order would begin with it
    again = merged(parts, file)
    again.keep_from(places[3], forget=False)
    again.keep_from(places[0], forget=False)
    assert values_of(read_all(again, places[0])) == [b"1", b"2", b"3", b"late"]
    again.keep_from(places[3])
    with pytest.raises(MessagesLost, match=r"order .* is not known"):
        again.keep_from(places[0])


def test_a_power_failure_that_cost_the_newest_lines(tmp_path):
    """A snapshot is on the disk, but the order up to its place is not."""
    parts, file = [GapLog(), GapLog(), GapLog()], tmp_path / "order.txt"
    log = merged(parts, file, turn=1)
    log.append([b"%d" % i for i in range(9)])
    first, _, third, *_ = log.read(log.start(), 9)
    log.close()
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2]))
    log = merged(parts, file, turn=1)
    log.keep_from(third.after)
    rest = read_all(log, third.after)
    assert len(rest) == 6 and read_all(merged(parts, file), third.after) == rest
    with pytest.raises(MessagesLost, match=r"order .* is not known"):
        merged(parts, file).keep_from(first.after)


def test_lost_messages_and_a_log_that_is_away(tmp_path):
    parts, file = [GapLog("part 0"), GapLog("part 1")], tmp_path / "order.txt"
    log = merged(parts, file, turn=1)
    log.append([b"%d" % i for i in range(8)])
    first = log.read(log.start(), 8)
    parts[1].is_away = True
    log = merged(parts, file, turn=1)
    with pytest.raises(LogUnavailable, match="part 1: away"):
        log.read(log.start(), 8)
    parts[1].is_away = False
    assert log.read(log.start(), 8) == first
    parts[1].messages, parts[1].last = parts[1].messages[:1], 1
    with pytest.raises(MessagesLost, match="part 1: ends at message 1, but 2 were read"):
        read_all(merged(parts, file), (0,))
    log.trim(first[3].after)
    assert log.start() == first[3].after
    with pytest.raises(MessagesLost, match="part 0"):
        log.read((0,), 1)


def test_nothing_is_lost_if_a_log_fails_between_two_messages(tmp_path):
    parts = [GapLog(), GapLog()]
    log = merged(parts, tmp_path / "order.txt", turn=1)
    log.append([b"%d" % i for i in range(40)])
    read, away = parts[1].read, iter(range(1000))

    def fails_at_times(position, most, wait=0.0):
        if next(away) % 3 == 1:
            raise LogUnavailable("away")
        return read(position, min(most, 3))

    parts[1].read, place, found = fails_at_times, log.start(), []
    while len(found) < 40:
        try:
            part = log.read(place, 7)
        except LogUnavailable:
            continue
        found += part
        place = part[-1].after
    assert sorted(values_of(found), key=int) == [b"%d" % i for i in range(40)]
    parts[1].read = read
    assert read_all(merged(parts, tmp_path / "order.txt"), (0,)) == found


def test_the_file_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(merge_order, "MANY", 50)
    parts, file = [GapLog(), GapLog()], tmp_path / "order.txt"
    log, lines = merged(parts, file, turn=1), []
    place = log.start()
    for _ in range(40):
        log.append([b"x"] * 10)
        log.keep_from(place)
        place = read_all(log, place)[-1].after
        lines.append(len(file.read_text().splitlines()))
    assert 50 < max(lines) <= 50 + 20 + 1


def test_the_order_is_that_of_the_first_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(merge_order, "MANY", 30)  # the file is written again now and then
    rng, file = random.Random(3), tmp_path / "order.txt"
    parts = [GapLog() for _ in range(3)]
    first = merged(parts, file)
    place = behind = first.start()
    second = FollowedLog(parts, name="topic", order=file)
    read, followed, number = [], [], 0
    for _ in range(200):
        for _ in range(rng.randrange(8)):
            parts[rng.randrange(3)].add(b"%d" % number, gap=rng.randrange(3))
            number += 1
        found = first.read(place, rng.randrange(1, 20))
        read += values_of(found)
        place = found[-1].after if found else first.past_gaps(place)
        if rng.random() < 0.3:  # up to where the first has read, and no further
            found = read_all(second, behind, rng.randrange(1, 20))
            followed += values_of(found)
            behind = found[-1].after if found else second.past_gaps(behind)
            assert followed == read
            first.keep_from(behind)
    assert len(followed) > 300


def test_nothing_is_read_before_the_first_reader(tmp_path):
    parts = [GapLog(), GapLog()]
    first = merged(parts, tmp_path / "order.txt")
    second = FollowedLog(parts, name="topic", order=tmp_path / "order.txt")
    place = first.start()
    parts[1].add(b"a")
    assert second.read(place, 10, wait=0.02) == []
    assert values_of(first.read(place, 10)) == values_of(second.read(place, 10)) == [b"a"]


def test_the_order_is_read_once(tmp_path, monkeypatch):
    """Not anew at each read: a run of weeks has hundreds of thousands of lines."""
    file, parts = tmp_path / "order.txt", [GapLog(), GapLog()]
    first, second = merged(parts, file), FollowedLog(parts, name="topic", order=file)
    read_on, lengths = merge_order.MergeOrder.read_on, []

    def counted(order, stream, known=0):
        now = read_on(order, stream, known)
        lengths.append(now - known)
        return now

    monkeypatch.setattr(merge_order.MergeOrder, "read_on", counted)
    find, searches = merge_order.MergeOrder.find, []
    monkeypatch.setattr(
        merge_order.MergeOrder, "find", lambda *args: searches.append(0) or find(*args)
    )
    place = behind = first.start()
    for i in range(100):
        parts[i % 2].add(b"%d" % i)
        place = first.read(place, 10)[-1].after
        searches.clear()
        (message,) = second.read(behind, 10)
        behind = message.after
        assert len(searches) <= (i == 0)
        assert second.read(behind, 10) == []
    assert sum(lengths) == file.stat().st_size
