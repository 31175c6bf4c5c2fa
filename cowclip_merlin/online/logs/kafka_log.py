"""A log in a Kafka topic.

The place is never that of a consumer group: readers say where they read, and keep it themselves.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from types import MappingProxyType

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
from cowclip_merlin.online.logs.kafka_errors import (
    CONSUMER,
    FORM,
    GONE,
    MISSING,
    MOST_BYTES,
    PRODUCER,
    TIMEOUT,
    Delivery,
    KafkaErrors,
    common_settings,
)
from cowclip_merlin.online.logs.message_log import (
    LogRefused,
    Message,
    MessageLog,
    MessagesLost,
    Position,
    in_parts,
)
from cowclip_merlin.online.logs.open_log import parse_address
from cowclip_merlin.online.logs.partitions import merged, places_of, position_of, positions

_AT_ONCE = 1 << 25  # bytes that wait for an acknowledgement
_MANY = 50_000  # messages that do; the producer's queue takes 100,000
_BLOCK = 1.0  # seconds after which a waiting reader asks whether the server is still there
_MOST = 1_000_000  # messages that the library gives at once
_AT_LEAST = 1000  # messages to look for, to find some of a partition among them
_AHEAD = 100_000  # messages that wait at most for those of a partition that does not answer


class _Partition:
    """What the consumer has read of a partition.

    Attributes:
        number: of the partition.
        begin: no message is between this offset and the first of those that wait.
        waiting: messages that were read and not taken.
        next: offset that the consumer reads next.
        at: offset that was asked for.
        wanted: offset up to which messages must be there.
        seen_end: offset at which the consumer has met the end of the partition.
        end: offset of its end that the server has told.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: deque[Message] = deque()
        self.go_to(0)

    def go_to(self, offset: int) -> None:
        """Begin at an offset."""
        self.begin = self.next = self.at = offset
        self.seen_end = self.end = self.wanted = -1
        self.waiting.clear()

    @property
    def first(self) -> int:
        """Offset of the next message, or at which it will be read."""
        return self.waiting[0].place - 1 if self.waiting else self.next

    def take(self, count: int) -> None:
        """Drop the first messages that wait, which are taken."""
        for _ in range(count):
            self.begin = self.waiting.popleft().place


class KafkaLog(MessageLog):
    """A log in a Kafka topic. A position is (offset,), or a vector if there are several partitions.

    The vector is (messages before it in all, offset in partition 0, offset in partition 1, ...),
    without partitions at the end that were not begun; an offset in partition 0 alone is (offset,).
    So positions stay valid if partitions are added, which are read from their start.

    Messages of several partitions are read about in the order of their times. Those between two
    positions have one order, whenever and by whom they are read: see `between`.

    Of transactions, the committed ones are read. Their ends, and messages that were compacted or
    aborted, leave gaps: offsets that count as messages in positions.

    Args:
        url: kafka://HOST[:9092]/TOPIC, or kafka://HOST/TOPIC/PARTITION if the topic has several;
            HOST:PORT,HOST:PORT names several brokers. Options are those of librdkafka, such as
            `?security.protocol=SSL&ssl.ca.location=FILE`.
        create: make the topic, with one partition, if it is not there.
        several: take a topic of several partitions, too.

    Raises:
        InputError: the address is wrong, there is no such topic or partition, or it has several.
        LogRefused: the server refuses access, or the options of the address are wrong.
        LogUnavailable: the server does not answer.
    """

    def __init__(self, url: str, *, create: bool = False, several: bool = False) -> None:
        address = parse_address(url, FORM)
        self.name = address.name
        self._topic, _, partition = address.path.partition("/")
        if partition and not (partition.isascii() and partition.isdigit()):
            raise InputError(f"{self.name}: {partition!r} is no partition; give {FORM}")
        self._told = KafkaErrors(self.name)
        self._settings = {**common_settings(address), "error_cb": self._told.note}
        self._producer: Producer | None = None
        self._ends: list[int] = []  # of the partitions, as far as this object has appended
        self._appended = 0  # the partition that gets the next message
        self._is_assigned = False  # whether the consumer reads where `_parts` say
        with self._errors():
            self._admin = AdminClient(self._settings)
            self._consumer = Consumer(CONSUMER | self._settings)
            known = self._known_partitions(create, int(partition or 0))
        if partition and int(partition) not in known:
            raise InputError(f"{self.name}: no partition {partition}; the topic has {len(known)}")
        if not partition and len(known) > 1 and not several:
            raise InputError(
                f"{self.name}: the topic has {len(known)} partitions, and so no one order; give "
                f"one of them, such as {self.name}/0, or a topic with one partition"
            )
        numbers = [int(partition)] if partition else range(len(known))
        self._parts = [_Partition(number) for number in numbers]

    def append(self, values: Sequence[bytes]) -> Position:
        """Append messages, to partitions in turn; wait for all replicas in sync."""
        with self._errors():
            if not self._ends:
                several = len(self._parts) > 1
                self._ends = [self._watermarks(p)[1] if several else 0 for p in self._parts]
                self._appended = self._ends.index(min(self._ends))
            for some in in_parts(values, most=_MANY, most_bytes=_AT_ONCE):
                try:
                    after = self._send(some)
                except KafkaException as error:
                    self._refuse_missing_topic(error.args[0])
                    raise
                known = zip(self._parts, self._ends, strict=True)
                self._ends = [after.get(part.number, end) for part, end in known]
            known = zip(self._parts, self._ends, strict=True)
            return position_of([end or self._watermarks(part)[1] for part, end in known])

    def read(self, position: Position, most: int, wait: float = 0.0) -> list[Message]:
        """Read messages after a position; wait for the first one so many seconds."""
        until = time.monotonic() + wait
        with self._errors():
            self._go_to(self._offsets(position))
            while True:
                self._fill(most)
                if found := self._take(position, most):
                    return found
                self._check()
                if all(part.next >= part.end for part in self._parts):
                    if (rest := until - time.monotonic()) <= 0:
                        return []
                    self._consume(1, min(rest, _BLOCK))

    def between(self, position: Position, until: Position) -> list[Message]:
        """Read the messages between two positions.

        Returns:
            All of them, in the order of `in_order`.
        """
        ends = self._offsets(until)
        with self._errors():
            self._go_to(self._offsets(position))
            for part, end in zip(self._parts, ends, strict=True):
                part.wanted = end
            while behind := [part for part in self._parts if part.next < part.wanted]:
                self._advance(behind, sum(part.wanted - part.next for part in behind))
            heads = [[m for m in part.waiting if m.place <= part.wanted] for part in self._parts]
            return self._ordered(position, heads)

    def past_gaps(self, position: Position) -> Position:
        """Return the place before the next messages, or the ends of partitions."""
        if not self._is_assigned:
            return position
        parts = zip(self._parts, self._offsets(position), strict=True)
        return position_of([p.first if p.begin <= at <= p.first else at for p, at in parts])

    def start(self) -> Position:
        """Return the place before the oldest messages."""
        with self._errors():
            return position_of([self._watermarks(part)[0] for part in self._parts])

    def end(self) -> Position:
        """Return the place after the newest messages."""
        with self._errors():
            return position_of([self._watermarks(part)[1] for part in self._parts])

    def has_reached(self, position: Position, end: Position) -> bool:
        """Return whether no message before `end` is after a position, in any partition."""
        pairs = zip(self._offsets(position), self._offsets(end), strict=True)
        return all(at >= to for at, to in pairs)

    def trim(self, position: Position) -> None:
        """Remove the messages before a position."""
        with self._errors():
            parts = zip(self._parts, self._offsets(position), strict=True)
            old = [(p.number, at) for p, at in parts if at > self._watermarks(p)[0]]
            before = [TopicPartition(self._topic, number, at) for number, at in old]
            futures = self._admin.delete_records(before, request_timeout=TIMEOUT) if before else {}
            for future in futures.values():
                future.result(TIMEOUT)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
        self._producer = None

    def _known_partitions(self, create: bool, partition: int) -> Sequence[int]:
        """Return the partitions of the topic; make it if it is not there, or refuse that."""
        # All topics: to ask for one makes it, on servers that make topics by themselves.
        found = self._admin.list_topics(timeout=TIMEOUT).topics.get(self._topic)
        if found is None and not create:
            raise InputError(
                f"{self.name}: no such topic; check the name, or start the writer first"
            )
        if found is None:
            self._create_topic(partition + 1)
            return range(partition + 1)
        if found.error is not None:
            raise KafkaException(found.error)
        return list(found.partitions)

    def _create_topic(self, partitions: int) -> None:
        topic = NewTopic(
            self._topic,
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

    def _send(self, values: Sequence[bytes]) -> dict[int, int]:
        """Send messages, wait for their acknowledgement; return the offsets after them."""
        if self._producer is None:
            self._producer = Producer(PRODUCER | self._settings)
        producer, self._producer = self._producer, None  # a new one after any error
        delivery, n = Delivery(), len(self._parts)
        try:
            for i, value in enumerate(values, start=self._appended):
                number = self._parts[i % n].number
                producer.produce(self._topic, value, partition=number, on_delivery=delivery)
            waiting = producer.flush(TIMEOUT + 1)
        finally:
            if delivery.error is not None or len(producer):
                producer.purge()
        if delivery.error is not None:
            raise KafkaException(delivery.error)
        if waiting:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self._producer, self._appended = producer, (self._appended + len(values)) % n
        return delivery.after

    def _refuse_missing_topic(self, error: KafkaError) -> None:
        """Refuse to append to a topic that is gone; the library would wait for it."""
        if error.code() not in (*MISSING, KafkaError._MSG_TIMED_OUT):
            return
        if self._topic not in self._admin.list_topics(timeout=TIMEOUT).topics:
            raise LogRefused(
                f"{self.name}: the topic is gone; start this command again, which makes it"
            ) from None

    def _offsets(self, position: Position) -> list[int]:
        """The offset in each partition.

        Raises:
            MessagesLost: it is a position of another kind of log, or of more partitions.
        """
        n = len(self._parts)
        try:
            offsets = places_of(position, n)
        except ValueError:
            raise MessagesLost(
                f"{self.name}: {list(position)} is no position of this log; it is of another kind "
                "of log"
            ) from None
        if len(offsets) > n:
            raise MessagesLost(
                f"{self.name}: has {n} partitions, but {len(offsets)} were read before; the topic "
                "was replaced (`on_restart` skip goes on with the newest messages)"
            )
        return offsets

    def _go_to(self, offsets: Sequence[int]) -> None:
        """Let the consumer read from offsets on, unless it already does."""
        parts = list(zip(self._parts, offsets, strict=True))
        if self._is_assigned and all(part.begin <= at <= part.first for part, at in parts):
            for part, offset in parts:
                part.at, part.wanted = offset, -1
            return
        for part, offset in parts:
            part.go_to(offset)
        self._consumer.assign([TopicPartition(self._topic, p.number, at) for p, at in parts])
        self._is_assigned = True

    def _consume(self, most: int, wait: float) -> bool:
        """Let messages that are there wait; return whether something came, or an end."""
        parts, failed, came = {part.number: part for part in self._parts}, None, False
        for message in self._consumer.consume(min(most, _MOST), wait):
            part, error = parts[message.partition()], message.error()
            if error is None:
                part.next = message.offset() + 1
                part.waiting.append(_read_message(message, len(parts) > 1))
            elif error.code() == KafkaError._PARTITION_EOF:
                part.seen_end = part.next = max(message.offset(), part.next)
            else:  # other partitions may have messages after it
                failed = failed or error
                continue
            came = True
        if failed is None:
            return came
        self._is_assigned = False  # the next call meets the error again
        if not any(part.waiting for part in self._parts):
            if failed.code() in GONE:
                self._check()
            raise KafkaException(failed)
        return True

    def _fill(self, most: int) -> None:
        """Let `most` messages wait if they are there, and some of each partition that has some."""
        if sum(len(part.waiting) for part in self._parts) < _AHEAD:
            self._consume(most, 0.0)
        while self._is_assigned and (behind := [p for p in self._parts if self._has_more(p)]):
            count = sum(len(part.waiting) for part in self._parts)
            if count >= most and (count >= _AHEAD or all(part.waiting for part in behind)):
                return
            try:
                self._advance(behind, most - count if count < most else _AT_LEAST)
            except KafkaException:
                if len(self._parts) > 1 or not count:
                    raise

    def _has_more(self, part: _Partition) -> bool:
        """Whether messages of a partition are on their way."""
        if part.next < part.end:
            return True
        if part.next == part.seen_end:
            return False
        place = TopicPartition(self._topic, part.number)
        known = self._consumer.get_watermark_offsets(place, cached=True)
        return known is not None and part.next < known[1]

    def _advance(self, behind: Sequence[_Partition], most: int) -> None:
        """Wait until something comes; the server has messages of these partitions, or gaps."""
        before = [part.next for part in behind]
        until = time.monotonic() + TIMEOUT
        while (rest := until - time.monotonic()) > 0:
            if self._consume(most, 0.0) or self._consume(1, min(rest, _BLOCK)):
                if not self._is_assigned or before != [part.next for part in behind]:
                    return
                continue
            self._check()
        self._is_assigned = False
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _take(self, position: Position, most: int) -> list[Message]:
        """Take messages that wait: of several partitions up to the time that all have come to."""
        heads = [list(islice(part.waiting, most)) for part in self._parts]
        last = {
            part.number: head[-1].place
            for part, head in zip(self._parts, heads, strict=True)
            if head and (len(head) < len(part.waiting) or self._has_more(part))
        }
        return self._ordered(position, heads, most, last if len(heads) > 1 else {})

    def _ordered(
        self,
        position: Position,
        heads: Sequence[Sequence[Message]],
        most: int | None = None,
        last: Mapping[int, int] = MappingProxyType({}),
    ) -> list[Message]:
        """Take messages in their order, up to `most` or the last one of a partition."""
        given, found = list(islice(merged(heads), most)), []
        for message, after in zip(given, positions(position, given)):
            found.append(message._replace(after=after))
            if message.partition is not None and last.get(message.partition) == message.place:
                break
        for number, count in Counter(message.partition or 0 for message in found).items():
            self._parts[number].take(count)
        return found

    def _watermarks(self, part: _Partition) -> tuple[int, int]:
        """Ask the server for the offsets of the oldest message and after the newest one."""
        try:
            return self._ask_watermarks(part)
        except KafkaException as error:
            if error.args[0].code() not in MISSING:
                raise
        # The library says the same while no broker answers, and some time after that.
        if self._topic not in self._consumer.list_topics(timeout=TIMEOUT).topics:
            self._is_assigned = False
            raise MessagesLost(f"{self.name}: the topic is gone, and its messages are lost")
        return self._ask_watermarks(part)

    def _ask_watermarks(self, part: _Partition) -> tuple[int, int]:
        place = TopicPartition(self._topic, part.number)
        found = self._consumer.get_watermark_offsets(place, timeout=TIMEOUT, cached=False)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    def _check(self) -> None:
        """Refuse places whose messages, or those before them, are gone."""
        for part in self._parts:
            low, part.end = self._watermarks(part)
            asked = max(part.at, part.wanted)
            if low <= part.next and asked <= part.end:
                continue
            self._is_assigned = False
            name = f"{self.name}/{part.number}" if len(self._parts) > 1 else self.name
            is_old = low > part.next
            place = f"begins at message {low:,}" if is_old else f"ends at message {part.end:,}"
            raise MessagesLost(
                f"{name}: {place}, but message {asked:,} is asked for; the topic was trimmed, or "
                "the server has lost it"
            )

    def _errors(self) -> AbstractContextManager[None]:
        """Tell what the server, or its absence, means in one line."""
        return self._told.told(self._serve_callbacks)

    def _serve_callbacks(self) -> None:
        self._admin.poll(0)
        self._is_assigned = False  # the consumer may give a message instead
        self._consumer.poll(0)


def _read_message(message: KafkaMessage, is_of_several: bool) -> Message:
    kind, time = message.timestamp()
    known, after = None if kind == TIMESTAMP_NOT_AVAILABLE else time, message.offset() + 1
    partition = message.partition() if is_of_several else None
    return Message((after,), message.value() or b"", known, partition, after)
