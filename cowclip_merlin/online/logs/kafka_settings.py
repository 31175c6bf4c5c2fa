"""Settings of the Kafka clients, in the words of librdkafka."""

from __future__ import annotations

from collections.abc import Mapping

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.address import LogAddress
from cowclip_merlin.types import Json

FORM = "kafka://HOST[:9092]/TOPIC[/PARTITION][?OPTION=VALUE]"
TIMEOUT = 5.0
"""Seconds after which a server that does not answer is unavailable."""
MOST_BYTES = 1 << 26
"""Bytes of a message at most, in topics that `create=True` makes."""

_COMMON = {
    "log_level": 0,  # errors are raised here, and not printed by the library
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "socket.connection.setup.timeout.ms": int(1e3 * TIMEOUT),
}
CONSUMER = {
    "group.id": "cowclip",  # the library asks for one; nothing is stored in it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,  # transactions and compaction leave offsets without a message
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 1 << 23,
    "max.poll.interval.ms": 86_400_000,
}
"""Of the consumer, without those of `common_settings`."""
_QUEUE, _QUEUE_KILOBYTES = "queued.max.messages.kbytes", 1 << 16  # the library's default
PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "message.max.bytes": MOST_BYTES,
    "message.timeout.ms": int(1e3 * TIMEOUT),
    "queue.buffering.max.kbytes": 1 << 20,
}
"""Of the producer, without those of `common_settings`."""


def common_settings(address: LogAddress) -> Mapping[str, Json]:
    """Return the settings of all clients.

    Raises:
        InputError: user and password are not given as options.
    """
    if address.user or address.password:
        raise InputError(
            f"{address.name}: give user and password as options: "
            "?security.protocol=SASL_SSL&sasl.mechanism=PLAIN&sasl.username=...&sasl.password=..."
        )
    return _COMMON | {"bootstrap.servers": address.hosts} | dict(address.options)


def partition_addresses(url: str, partitions: int) -> list[str]:
    """Return the addresses of the partitions of a topic, whose readers share their memory.

    >>> partition_addresses("kafka://h/clicks?acks=all", 2)[1]
    'kafka://h/clicks/1?acks=all&queued.max.messages.kbytes=32768'
    """
    topic, _, options = url.partition("?")
    if _QUEUE not in options:
        memory = max(_QUEUE_KILOBYTES // partitions, 1)
        options += f"{'&' if options else ''}{_QUEUE}={memory}"
    return [f"{topic.rstrip('/')}/{partition}?{options}" for partition in range(partitions)]
