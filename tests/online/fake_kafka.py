"""A Kafka broker in memory, for tests of what its clients make of partitions.

Messages of partitions arrive in an order that is drawn, as from several servers.
"""

import random
import time
from concurrent.futures import Future
from types import SimpleNamespace

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, KafkaError

from cowclip_merlin.online.logs import kafka_log


class Partition:
    """Messages (offset, value, time) between the offsets `low` and `end`, with gaps."""

    def __init__(self):
        self.messages, self.low, self.end = [], 0, 0
        self.pace = 40  # messages that arrive at once, at most

    def add(self, value, *, gap=0, time=None):
        self.messages.append((self.end + gap, value, time))
        self.end += gap + 1

    def delete_before(self, offset):
        self.low = max(self.low, offset)
        self.messages = [each for each in self.messages if each[0] >= self.low]


class Broker:
    """Topics by name, each a list of partitions; `install` puts it in place of the library."""

    def __init__(self, seed=1):
        self.topics, self.draw = {}, random.Random(seed)
        self.failing = None  # topic and partition that give an error before their next messages

    def install(self, monkeypatch):
        clients = {"Consumer": Consumer, "AdminClient": Admin, "Producer": Producer}
        for name, client in clients.items():
            monkeypatch.setattr(kafka_log, name, lambda _, client=client: client(self))
        return self

    def make(self, name, partitions):
        self.topics[name] = [Partition() for _ in range(partitions)]
        return self.topics[name]


class Client:
    def __init__(self, broker):
        self.broker = broker

    def list_topics(self, timeout):
        return SimpleNamespace(
            topics={
                name: SimpleNamespace(error=None, partitions=dict(enumerate(partitions)))
                for name, partitions in self.broker.topics.items()
            }
        )

    def poll(self, timeout):
        pass

    def close(self):
        pass


class Consumer(Client):
    def __init__(self, broker):
        super().__init__(broker)
        self.next, self.said = {}, {}

    def assign(self, places):
        self.next = {(place.topic, place.partition): place.offset for place in places}
        self.said = {}

    def get_watermark_offsets(self, place, timeout=0, cached=False):
        partition = self.broker.topics[place.topic][place.partition]
        return partition.low, partition.end

    def consume(self, most, wait):
        until = time.monotonic() + wait
        while not (found := self.arrived(most)) and time.monotonic() < until:
            time.sleep(0.002)
        return found

    def arrived(self, most):
        found, draw = [], self.broker.draw
        for name, number in draw.sample(list(self.next), len(self.next)):
            partition, key = self.broker.topics[name][number], (name, number)
            if key == self.broker.failing:
                self.broker.failing = None
                found.append(Entry(number, self.next[key], error=KafkaError._FAIL))
                continue
            if self.next[key] < partition.low:
                found.append(Entry(number, self.next[key], error=KafkaError._AUTO_OFFSET_RESET))
                continue
            rest = [each for each in partition.messages if each[0] >= self.next[key]]
            part = rest[: min(draw.randint(1, partition.pace), most - len(found))]
            found += [Entry(number, *each) for each in part]
            if part:
                self.next[key] = part[-1][0] + 1
            elif not rest and self.said.get(key) != partition.end and len(found) < most:
                self.next[key] = self.said[key] = partition.end
                found.append(Entry(number, partition.end, error=KafkaError._PARTITION_EOF))
        return found


class Entry:
    def __init__(self, partition, offset, value=None, time=None, error=None):
        self.partition, self.offset = lambda: partition, lambda: offset
        self.value, self.error = lambda: value, lambda: error and KafkaError(error)
        kind = TIMESTAMP_NOT_AVAILABLE if time is None else TIMESTAMP_CREATE_TIME
        self.timestamp = lambda: (kind, time or 0)


class Admin(Client):
    def create_topics(self, topics, request_timeout):
        done = Future()
        done.set_result(None)
        for topic in topics:
            self.broker.make(topic.topic, topic.num_partitions)
        return dict.fromkeys(topics, done)

    def delete_records(self, places, request_timeout):
        done = Future()
        done.set_result(None)
        for place in places:
            self.broker.topics[place.topic][place.partition].delete_before(place.offset)
        return dict.fromkeys(places, done)


class Producer(Client):
    def produce(self, topic, value, *, partition, on_delivery):
        to = self.broker.topics[topic][partition]
        to.add(value)
        on_delivery(None, Entry(partition, to.end - 1))

    def flush(self, timeout):
        return 0

    def __len__(self):
        return 0
