"""Kafka topics with offsets that hold no message: transactions, aborted and compacted messages.

tansu 0.6.0 shows aborted messages and compacts nothing, so a made-up consumer has such gaps.
"""

import json
import time

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Producer

from cowclip_merlin.online.events.features import CategoricalColumn, LogFeatures
from cowclip_merlin.online.joining.run_join import join_logs
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.logs.message_log import MessagesLost
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.online.training.event_reader import EventReader

pytestmark = pytest.mark.system

SETTINGS = JoinSettings(window=30)
JOINED = LogFeatures(
    label="click", time="time", key="request", categorical=(CategoricalColumn(name="item"),)
)


def click(key, time):
    return json.dumps({"request": key, "time": time}).encode()


def impression(key, time):
    return json.dumps({"request": key, "time": time, "item": f"i{key}"}).encode()


def append_in_transactions(url, *transactions):
    """Each ends with a mark that takes an offset."""
    servers, _, topic = url.partition("?")[0].removeprefix("kafka://").partition("/")
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(10)
    for values in transactions:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.commit_transaction(10)


def test_ends_of_transactions_are_passed(topic):
    url = topic()
    log = open_log(url, create=True)
    append_in_transactions(url, [b"a", b"b"], [b"c"])
    started = time.monotonic()
    found = log.read((0,), 9)
    assert [(m.after, m.value) for m in found] == [((1,), b"a"), ((2,), b"b"), ((4,), b"c")]
    assert log.end() == (5,) and log.read((4,), 9) == [] and log.read((4,), 9, wait=0.05) == []
    assert log.past_gaps((4,)) == (5,) and log.past_gaps((3,)) == (3,)
    assert log.read((5,), 9) == [] and log.past_gaps((5,)) == (5,)
    assert time.monotonic() - started < 4  # it does not wait for a message that never comes
    again = open_log(url)
    assert again.read((4,), 9) == [] and again.past_gaps((4,)) == (5,)
    append_in_transactions(url, [b"d"])
    assert [m.value for m in log.read((4,), 9, wait=5)] == [b"d"]
    assert log.start() == (0,)


def test_a_join_and_a_reader_come_to_the_end_of_transactions(topic, tmp_path):
    urls = [topic() for _ in range(3)]
    for url in urls:
        open_log(url, create=True).close()
    append_in_transactions(urls[0], *([impression(f"r{i}", 100)] for i in range(4)))
    append_in_transactions(urls[1], [click("r1", 101)], [click("r2", 102)])
    counts = join_logs(*urls, JOINED, SETTINGS, state=tmp_path / "state", until_end=True)
    assert (counts.impressions, counts.clicks, counts.positives) == (4, 2, 2)
    append_in_transactions(urls[2], [json.dumps({"damaged": 1}).encode()])
    log = open_log(urls[2])
    reader = EventReader(log, JOINED, log.start(), damaged=DamagedMessages(tmp_path / "damaged"))
    batch = reader.next_batch(99, wait=0.5, rest=True)
    assert len(batch) == counts.positives + counts.negatives
    assert reader.next_batch(1) is None and reader.at_end() and reader.lag() == 0
    assert reader.position == log.end() == (len(batch) + 2,)


class Partition:
    """In place of a consumer: a partition with gaps, as compacted and aborted messages leave."""

    def __init__(self, offsets, end, low=0):
        self.offsets, self.end, self.low, self.next, self.said = offsets, end, low, None, None

    def assign(self, places):
        self.next, self.said = places[0].offset, None

    def consume(self, most, wait):
        if self.next < self.low:
            return [Entry(self.next, KafkaError(KafkaError._AUTO_OFFSET_RESET))]
        found = [Entry(offset) for offset in self.offsets if offset >= self.next][:most]
        self.next = found[-1].offset() + 1 if found else self.end
        if len(found) < most and self.said != self.end:
            self.next = self.said = self.end
            found.append(Entry(self.end, KafkaError(KafkaError._PARTITION_EOF)))
        return found

    def get_watermark_offsets(self, place, timeout=0, cached=False):
        return self.low, self.end


class Entry:
    def __init__(self, offset, error=None):
        self.offset, self.error = lambda: offset, lambda: error
        self.value = lambda: b"%d" % offset
        self.timestamp = lambda: (TIMESTAMP_NOT_AVAILABLE, 0)


@pytest.mark.parametrize("most", [1, 2, 99])
def test_gaps_are_passed_wherever_they_are(topic, monkeypatch, most):
    log, place, values = open_log(topic(), create=True), (0,), []
    partition = Partition(offsets := [2, 3, 7, 12], end=20)
    monkeypatch.setattr(log, "_consumer", partition)
    while place != (20,):
        found = log.read(place, most)
        assert len(found) <= most
        values += [(m.after[0] - 1, m.value) for m in found]
        place = found[-1].after if found else log.past_gaps(place)
    assert values == [(offset, b"%d" % offset) for offset in offsets]
    assert log.read((13,), most) == [] and log.past_gaps((13,)) == (20,)
    partition.low = 18  # only the gap was removed
    assert log.read((13,), most) == []
    with pytest.raises(MessagesLost, match="messages were trimmed"):
        log.read((12,), most)


def test_all_messages_of_a_partition_may_be_gone(topic, monkeypatch):
    log = open_log(topic(), create=True)
    monkeypatch.setattr(log, "_consumer", Partition([], end=6))
    assert log.read((0,), 9) == [] and log.past_gaps((0,)) == log.end() == (6,)
