"""Open a log from the text that a user gives: a folder, redis://HOST/NAME or kafka://HOST/NAME."""

from __future__ import annotations

from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.logs.message_log import MessageLog

FORMS = "a folder, redis://HOST:6379/STREAM or kafka://HOST:9092/TOPIC"
"""What `open_log` takes, for help texts."""


def open_log(url: str, *, create: bool = False) -> MessageLog:
    """Open a log.

    Args:
        url: a folder, or the address of a Redis Stream or of a Kafka topic; see `RedisLog` and
            `KafkaLog` for options.
        create: make the log if it is not there, as those who append do.

    Raises:
        InputError: the address is wrong, there is no such log, or a package is missing.
        LogUnavailable: the server does not answer.

    >>> open_log("amqp://host/clicks")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: amqp://host/clicks: unknown kind of log 'amqp'; give a \
folder, redis://HOST:6379/STREAM or kafka://HOST:9092/TOPIC
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return FileLog(url, create=create)
    try:
        if scheme in ("redis", "rediss"):
            from cowclip_merlin.online.logs.redis_log import RedisLog

            return RedisLog(url, create=create)
        if scheme == "kafka":
            from cowclip_merlin.online.logs.kafka_log import KafkaLog

            return KafkaLog(url, create=create)
    except ImportError as error:
        raise InputError(
            f"{scheme}:// needs the package {error.name}: pip install 'cowclip-merlin[online]'"
        ) from None
    place = rest.rpartition("@")[2].partition("?")[0]  # without user, password and options
    raise InputError(f"{scheme}://{place}: unknown kind of log {scheme!r}; give {FORMS}")


def log_identity(url: str) -> str:
    """Return what stays the same when a log moves to another machine: its kind and its name.

    >>> log_identity("redis://:secret@host:6379/clicks"), log_identity("/data/clicks/")
    ('redis clicks', 'folder clicks')
    """
    scheme, separator, rest = url.partition("://")
    name = rest.partition("/")[2] if separator else Path(url).resolve().name
    return f"{scheme if separator else 'folder'} {name}"
