"""What the log makes of the partitions of a Kafka topic, on a broker in memory."""

import random

import pytest
from fake_kafka import Broker, Partition

from cowclip_merlin.online import open_log
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessagesLost


@pytest.fixture
def broker(monkeypatch):
    return Broker().install(monkeypatch)


def test_messages_below_the_low_watermark_are_lost(broker):
    """tansu 0.6.0 cannot delete records."""
    log, other = (open_log("kafka://h/low", create=True) for _ in range(2))
    log.append([b"a"] * 8)
    assert len(other.read((0,), 2)) == 2
    log.trim((0,))
    assert log.start() == (0,)
    log.trim((5,))
    log.trim((3,))
    assert log.start() == (5,)
    for reader in (log, other):
        with pytest.raises(MessagesLost, match="begins at message 5, but message 4 "):
            reader.read((4,), 1)


@pytest.mark.parametrize("most", [1, 2, 99])
def test_gaps_are_passed_wherever_they_are(broker, most):
    (partition,), place, values = broker.make("gaps", 1), (0,), []
    offsets, end = [2, 3, 7, 12], 20
    for offset in offsets:
        partition.add(b"%d" % offset, gap=offset - partition.end)
    log, partition.end = open_log("kafka://h/gaps"), end
    while place != (20,):
        found = log.read(place, most)
        assert len(found) <= most
        values += [(m.after[0] - 1, m.value) for m in found]
        place = found[-1].after if found else log.past_gaps(place)
    assert values == [(offset, b"%d" % offset) for offset in offsets]
    assert [m.value for m in log.between((3,), (15,))] == [b"3", b"7", b"12"]
    assert log.read((13,), most) == [] and log.past_gaps((13,)) == (20,)
    partition.delete_before(18)  # only the gap was removed
    assert log.read((13,), most) == []
    with pytest.raises(MessagesLost, match="begins at message 18, but message 12 "):
        log.read((12,), most)


def test_all_messages_of_a_partition_may_be_gone(broker):
    broker.make("gone", 1)[0].end = 6
    log = open_log("kafka://h/gone")
    assert log.read((0,), 9) == [] and log.past_gaps((0,)) == log.end() == (6,)


def test_messages_of_partitions_come_about_in_the_order_of_their_times(broker):
    """However they arrive; those of one partition keep their order, and none is waited for."""
    draw, parts = random.Random(2), broker.make("timed", 4)
    for i in range(2000):
        parts[draw.randrange(3)].add(b"%d" % i, time=1000 + i - 40 * (draw.random() < 0.1))
    log, place, found = open_log("kafka://h/timed", several=True), (0,), []
    while part := log.read(place, draw.randint(1, 99)):
        found += [int(message.value) for message in part]
        place = part[-1].after
    assert sorted(found) == [*range(2000)] != found
    assert max(abs(i - value) for i, value in enumerate(found)) < 100
    for part in parts:
        own = [int(value) for _, value, _ in part.messages]
        assert [value for value in found if value in {*own}] == own


def test_a_topic_may_get_partitions_and_may_not_lose_them(broker):
    topic = broker.make("grows", 2)
    open_log("kafka://h/grows", several=True).append([b"a", b"b", b"c"])
    topic.append(Partition())
    log = open_log("kafka://h/grows", several=True)
    assert log.read((3, 2, 1), 9) == [] and log.append([b"d"]) == (4, 2, 1, 1)
    assert [m.value for m in log.read((3, 2, 1), 9)] == [b"d"]
    topic[1:] = []
    with pytest.raises(MessagesLost, match="has 1 partitions, but 3 were read before"):
        open_log("kafka://h/grows", several=True).read((4, 2, 1, 1), 9)


def test_an_error_of_one_partition_loses_no_message_of_another(broker):
    """The library gives both in one batch."""
    parts = broker.make("failing", 3)
    for i in range(300):
        parts[i % 3].add(b"%d" % i, time=1000 + i)
    log, place, found = open_log("kafka://h/failing", several=True), (0,), []
    for look in range(1000):
        if look % 3 == 0:
            broker.failing = ("failing", broker.draw.randrange(3))
        try:
            part = log.read(place, 40)
        except LogUnavailable:
            continue
        if not part and place == log.end():
            break
        found += [int(message.value) for message in part]
        place = part[-1].after if part else place
    assert sorted(found) == [*range(300)]
    broker.failing = ("failing", 0)
    both = log.between((0,), (150, 50, 50, 50))
    assert sorted(int(message.value) for message in both) == [*range(150)]


def test_an_end_is_reached_in_each_partition(broker):
    """Later messages of one do not stand for those of another."""
    for part in broker.make("ends", 2):
        for _ in range(10):
            part.add(b"")
    log = open_log("kafka://h/ends", several=True)
    end = (10, 5, 5)
    assert not log.has_reached((10, 0, 10), end) and not log.has_reached((9, 5, 4), end)
    assert log.has_reached(end, end) and log.has_reached((13, 5, 8), end)


def test_few_messages_wait_for_a_partition_that_is_behind(broker, monkeypatch):
    monkeypatch.setattr("cowclip_merlin.online.logs.kafka_log._AHEAD", 200)
    slow, fast = broker.make("uneven", 2)
    slow.pace = 1
    for i in range(3000):
        slow.add(b"", time=i)
        fast.add(b"", time=5000 + i)
    log, place = open_log("kafka://h/uneven", several=True), (0,)
    for _ in range(60):
        place = log.read(place, 50)[-1].after
        assert sum(len(part.waiting) for part in log._parts) < 400
