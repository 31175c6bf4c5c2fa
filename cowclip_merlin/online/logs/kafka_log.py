"""A log in one partition of a Kafka topic.

The place is never that of a consumer group: readers say where they read, and keep it themselves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient, NewTopic

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.address import parse_address
from cowclip_merlin.online.logs.kafka_errors import (
    CONSUMER,
    FORM,
    MISSING,
    MOST_BYTES,
    PRODUCER,
    TIMEOUT,
    Delivery,
    KafkaErrors,
    common_settings,
    partition_addresses,
)
from cowclip_merlin.online.logs.message_log import (
    LogRefused,
    Message,
    MessageLog,
    MessagesLost,
    Position,
    SeveralParts,
    in_parts,
    numbers_of,
)

_AT_ONCE = 1 << 25  # bytes that wait for an acknowledgement
_MANY = 50_000  # messages that do; the producer's queue takes 100,000
_BLOCK = 1.0  # seconds after which a waiting reader asks whether the server is still there
_MOST = 1_000_000  # messages that the library gives at once


class KafkaLog(MessageLog):
    """A log in one partition of a Kafka topic. A position is (offset,).

    Of transactions, the committed ones are read. Their ends, and messages that were compacted or
    aborted, leave gaps: offsets that count as messages in positions.

    Args:
        url: kafka://HOST[:9092]/TOPIC, or kafka://HOST/TOPIC/PARTITION if the topic has several;
            HOST:PORT,HOST:PORT names several brokers. Options are those of librdkafka, such as
            `?security.protocol=SSL&ssl.ca.location=FILE`.
        create: make the topic, with one partition, if it is not there.

    Raises:
        InputError: the address is wrong, there is no such topic or partition.
        SeveralParts: the topic has several partitions, and the address names none.
        LogRefused: the server refuses access, or the options of the address are wrong.
        LogUnavailable: the server does not answer.
    """

    def __init__(self, url: str, *, create: bool = False) -> None:
        address = parse_address(url, FORM)
        self._url, self.name = url, address.name
        topic, _, partition = address.path.partition("/")
        if partition and not (partition.isascii() and partition.isdigit()):
            raise InputError(f"{self.name}: {partition!r} is no partition; give {FORM}")
        self._place = TopicPartition(topic, int(partition or 0))
        self._told = KafkaErrors(self.name)
        self._settings = {**common_settings(address), "error_cb": self._told.note}
        self._producer: Producer | None = None
        self._next: int | None = None  # offset that the consumer reads next
        self._gap = 0  # no message is between this offset and that one
        self._seen_end = -1  # offset at which the consumer has met the end of the partition
        with self._errors():
            self._admin = AdminClient(self._settings)
            self._consumer = Consumer(CONSUMER | self._settings)
            self._prepare(create, single=not partition)

    def append(self, values: Sequence[bytes]) -> Position:
        """Append messages; wait for the acknowledgement of all replicas in sync."""
        after = None
        with self._errors():
            for part in in_parts(values, most=_MANY, most_bytes=_AT_ONCE):
                try:
                    after = self._send(part)
                except KafkaException as error:
                    self._refuse_missing_topic(error.args[0])
                    raise
        return self.end() if after is None else (after,)

    def read(self, position: Position, most: int, wait: float = 0.0) -> list[Message]:
        """Read messages after a position; wait for the first one so many seconds."""
        (offset,) = numbers_of(self.name, position, 1)
        until = time.monotonic() + wait
        with self._errors():
            self._go_to(offset)
            found = self._consume(most, 0.0)
            while not found:
                there = self._watermarks()
                self._check(offset, *there)
                rest = until - time.monotonic()
                if self._next is None or self._next < there[1]:  # on its way from the server
                    found = self._arriving(most)
                elif rest <= 0:
                    break
                else:
                    found = self._consume(1, min(rest, _BLOCK))
            return found + self._rest(found, most)

    def past_gaps(self, position: Position) -> Position:
        """Return the place before the next message, or the end of the partition."""
        (offset,) = numbers_of(self.name, position, 1)
        return (self._next,) if self._is_at(offset) else position

    def start(self) -> Position:
        """Return the place before the oldest message."""
        with self._errors():
            return (self._watermarks()[0],)

    def end(self) -> Position:
        """Return the place after the newest message."""
        with self._errors():
            return (self._watermarks()[1],)

    def trim(self, position: Position) -> None:
        """Remove the messages before a position."""
        (offset,) = numbers_of(self.name, position, 1)
        before = TopicPartition(self._place.topic, self._place.partition, offset)
        with self._errors():
            if offset > self._watermarks()[0]:
                futures = self._admin.delete_records([before], request_timeout=TIMEOUT)
                for future in futures.values():
                    future.result(TIMEOUT)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
        self._producer = None

    def _prepare(self, create: bool, single: bool) -> None:
        """Make the topic if it is not there, or refuse that; check the partition."""
        topic, partition = self._place.topic, self._place.partition
        # All topics: to ask for one makes it, on servers that make topics by themselves.
        found = self._admin.list_topics(timeout=TIMEOUT).topics.get(topic)
        if found is None and not create:
            raise InputError(
                f"{self.name}: no such topic; check the name, or start the writer first"
            )
        if found is None:
            self._create_topic(partition + 1)
        elif found.error is not None:
            raise KafkaException(found.error)
        elif single and len(found.partitions) > 1:
            raise SeveralParts(
                f"{self.name}: the topic has {len(found.partitions)} partitions, and so no one "
                f"order; give one of them, such as {self.name}/0, or a topic with one partition",
                partition_addresses(self._url, len(found.partitions)),
            )
        elif partition not in found.partitions:
            raise InputError(
                f"{self.name}: no partition {partition}; the topic has {len(found.partitions)}"
            )

    def _create_topic(self, partitions: int) -> None:
        topic = NewTopic(
            self._place.topic,
            num_partitions=partitions,
            replication_factor=-1,  # the server's default
            config={"max.message.bytes": str(MOST_BYTES)},
        )
        for future in self._admin.create_topics([topic], request_timeout=TIMEOUT).values():
            try:
                future.result(TIMEOUT)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _send(self, values: Sequence[bytes]) -> int:
        """Send messages, wait for their acknowledgement, and return the offset after them."""
        if self._producer is None:
            self._producer = Producer(PRODUCER | self._settings)
        producer, self._producer = self._producer, None  # a new one after any error
        delivery = Delivery()
        try:
            for value in values:
                producer.produce(
                    self._place.topic,
                    value,
                    partition=self._place.partition,
                    on_delivery=delivery,
                )
            waiting = producer.flush(TIMEOUT + 1)
        finally:
            if delivery.error is not None or len(producer):
                producer.purge()
        if delivery.error is not None:
            raise KafkaException(delivery.error)
        if waiting:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self._producer = producer
        return delivery.last + 1

    def _refuse_missing_topic(self, error: KafkaError) -> None:
        """Refuse to append to a topic that is gone; the library would wait for it."""
        if error.code() not in (*MISSING, KafkaError._MSG_TIMED_OUT):
            return
        if self._place.topic not in self._admin.list_topics(timeout=TIMEOUT).topics:
            raise LogRefused(
                f"{self.name}: the topic is gone; start this command again, which makes it"
            ) from None

    def _is_at(self, offset: int) -> bool:
        """Whether the consumer's next message is that after an offset."""
        return self._next is not None and self._gap <= offset <= self._next

    def _go_to(self, offset: int) -> None:
        """Let the consumer read from an offset on, unless it already does."""
        if not self._is_at(offset):
            place = TopicPartition(self._place.topic, self._place.partition, offset)
            self._consumer.assign([place])
            self._next = self._gap = offset

    def _consume(self, most: int, wait: float) -> list[Message]:
        """Messages that are there; it returns early, and without one, at the partition's end."""
        found: list[Message] = []
        for message in self._consumer.consume(min(most, _MOST), wait):
            error = message.error()
            if error is None:
                self._next = self._gap = message.offset() + 1
                found.append(_read_message(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._seen_end = self._next = max(message.offset(), self._next or 0)
            else:
                self._next = None
                if found:
                    break
                raise KafkaException(error)
        return found

    def _arriving(self, most: int) -> list[Message]:
        """Wait for messages that the server has; none if there are gaps only."""
        until, before = time.monotonic() + TIMEOUT, self._next
        while (rest := until - time.monotonic()) > 0:
            found = self._consume(1, rest)
            if found or self._next != before:
                return found
        self._next = None
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _rest(self, found: list[Message], most: int) -> list[Message]:
        """Read on while the consumer knows that there is more."""
        more: list[Message] = []
        while found and self._next is not None and len(found) + len(more) < most:
            known = self._consumer.get_watermark_offsets(self._place, cached=True)
            if known is None or self._next >= known[1] or self._next == self._seen_end:
                break
            part = self._consume(most - len(found) - len(more), 0.0) or self._consume(1, TIMEOUT)
            if not part:
                break
            more += part
        return more

    def _watermarks(self) -> tuple[int, int]:
        """Ask the server for the offsets of the oldest message and after the newest one."""
        try:
            return self._ask_watermarks()
        except KafkaException as error:
            if error.args[0].code() not in MISSING:
                raise
        # The library says the same while no broker answers, and some time after that.
        if self._place.topic not in self._consumer.list_topics(timeout=TIMEOUT).topics:
            self._next = None
            raise MessagesLost(f"{self.name}: the topic is gone, and its messages are lost")
        return self._ask_watermarks()

    def _ask_watermarks(self) -> tuple[int, int]:
        place, timeout = self._place, TIMEOUT
        found = self._consumer.get_watermark_offsets(place, timeout=timeout, cached=False)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    def _check(self, offset: int, low: int, high: int) -> None:
        """Refuse an offset whose message, or those before it, are gone."""
        known = offset if self._next is None else self._next  # nothing is lost between the two
        if not (low <= known and offset <= high):
            self._next = None
            place = f"begins at message {low:,}" if offset < low else f"ends at message {high:,}"
            raise MessagesLost(
                f"{self.name}: {place}, but message {offset:,} is asked for; "
                "the topic was trimmed, or the server has lost it"
            )

    def _errors(self) -> AbstractContextManager[None]:
        """Tell what the server, or its absence, means in one line."""
        return self._told.told(self._serve_callbacks)

    def _serve_callbacks(self) -> None:
        self._admin.poll(0)
        self._next = None  # the consumer may give a message instead
        self._consumer.poll(0)


def _read_message(message: KafkaMessage) -> Message:
    kind, time = message.timestamp()
    known = None if kind == TIMESTAMP_NOT_AVAILABLE else time
    return Message((message.offset() + 1,), message.value() or b"", known)
