"""Settings of Kafka clients, and what their errors mean for a user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from confluent_kafka import KafkaError, KafkaException, Message

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import LogRefused, LogUnavailable, MessagesLost
from cowclip_merlin.online.logs.open_log import LogAddress
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


_LARGER = "raise max.message.bytes of the topic"
_RIGHTS = "check the user's rights"
_LOGIN = "check user and password"
_OPTIONS = "check the options of the address"
_BY_HAND = "make the topic by hand, or give another one"
_NEWER = "use a newer broker"
REMEDIES = {
    KafkaError.MSG_SIZE_TOO_LARGE: _LARGER,
    KafkaError.RECORD_LIST_TOO_LARGE: _LARGER,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError.GROUP_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _OPTIONS,
    KafkaError.ILLEGAL_SASL_STATE: _OPTIONS,
    KafkaError.SECURITY_DISABLED: _OPTIONS,
    KafkaError._INVALID_ARG: _OPTIONS,
    KafkaError._CONFLICT: _OPTIONS,
    KafkaError._SSL: "check ssl.ca.location and the certificates",
    KafkaError.TOPIC_EXCEPTION: "give a topic with another name",
    KafkaError.INVALID_PARTITIONS: _BY_HAND,
    KafkaError.INVALID_REPLICATION_FACTOR: _BY_HAND,
    KafkaError.INVALID_CONFIG: _BY_HAND,
    KafkaError.POLICY_VIOLATION: _BY_HAND,
    KafkaError.INVALID_RECORD: "write to a topic with cleanup.policy=delete: messages have no keys",
    KafkaError.UNSUPPORTED_VERSION: _NEWER,
    KafkaError._UNSUPPORTED_FEATURE: _NEWER,
}
"""Errors that do not go away by themselves, and what helps."""

_SILENT = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
)
"""What a call says that got no answer; also after a refusal, since the library tries again."""

MISSING = (
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
"""What a call says about a topic that is not there, or while no broker answers."""


GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""What a call says about a place that the topic does not have."""


class KafkaErrors:
    """Turns the errors of the clients of one log into errors in one line.

    Args:
        name: of the log.
    """

    def __init__(self, name: str) -> None:
        self._name, self._refusal = name, None

    def note(self, error: KafkaError) -> None:
        """Keep a refusal; the `error_cb` of all clients."""
        if is_refusal(error):
            self._refusal = error

    @contextmanager
    def told(self, serve: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Raise what an error within the block means.

        Args:
            serve: lets the clients call `note`, if they have something to say.

        Raises:
            LogRefused: the server would refuse the same call again.
            MessagesLost: the log does not have the messages.
            LogUnavailable: any other error.
        """
        try:
            yield
            self._refusal = None
        except KafkaException as error:
            self._tell(error.args[0], serve)
        except (TimeoutError, BufferError):
            self._tell(KafkaError(KafkaError._TIMED_OUT), serve)

    def _tell(self, error: KafkaError, serve: Callable[[], None]) -> NoReturn:
        if error.code() in _SILENT:
            serve()
            error = self._refusal or error
        reason, code = f"{self._name}: {error.str()}", error.code()
        if is_refusal(error):
            raise LogRefused(f"{reason}; {REMEDIES[code]}") from None
        if code in GONE:
            raise MessagesLost(f"{reason}; messages were trimmed, or the server has lost them")
        raise LogUnavailable(f"{reason}; is the server running?") from None


def is_refusal(error: KafkaError) -> bool:
    """Whether an error stays as long as nobody changes the server or the address.

    >>> is_refusal(KafkaError(KafkaError._AUTHENTICATION)), is_refusal(KafkaError(KafkaError._FAIL))
    (True, False)
    """
    code, text = error.code(), error.str()
    if code == KafkaError._SSL:  # also what a server says that ends during the handshake
        return "certificate" in text.lower()
    if code == KafkaError._AUTHENTICATION and "transport failure" in text:
        return False
    return code in REMEDIES


class Delivery:
    """Collects the acknowledgements of messages.

    Attributes:
        error: of a message that was not acknowledged; None if all were.
        after: partition -> the place after its last acknowledged message.
    """

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.after: dict[int, int] = {}

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Take the acknowledgement of a message, or its error."""
        if error is not None:
            self.error = error
        else:
            number, after = message.partition(), message.offset() + 1
            self.after[number] = max(self.after.get(number, 0), after)
