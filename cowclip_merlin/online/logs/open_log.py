"""Open a log from the text that a user gives: a folder, redis://HOST/NAME or kafka://HOST/NAME."""

from __future__ import annotations

from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.address import parse_address
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.logs.message_log import MessageLog

LOG_FORMS = "a folder, redis://HOST:6379/STREAM or kafka://HOST:9092/TOPIC"
"""How the address of a log may be written, for help texts and errors."""


def open_log(url: str, *, create: bool = False, several: bool = False) -> MessageLog:
    """Open a log.

    Args:
        url: a folder, or the address of a Redis Stream or a Kafka topic; `RedisLog` and `KafkaLog`
            tell the options.
        create: make the log if it is not there, as those who append do.
        several: take a Kafka topic of several partitions, too, whose messages have no one order.

    Raises:
        InputError: the address is wrong, there is no such log, or a package is missing.
        LogUnavailable: the server does not answer.

    >>> open_log("amqp://host/clicks")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: amqp://host/clicks: unknown kind of log 'amqp'; give a \
folder, redis://HOST:6379/STREAM or kafka://HOST:9092/TOPIC
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return FileLog(url, create=create)
    if scheme not in ("redis", "rediss", "kafka"):
        what = f"unknown kind of log {scheme!r}; give {LOG_FORMS}"
        raise InputError(f"{shown_address(url)}: {what}")
    try:
        if scheme == "kafka":
            from cowclip_merlin.online.logs.kafka_log import KafkaLog

            return KafkaLog(url, create=create, several=several)
        from cowclip_merlin.online.logs.redis_log import RedisLog

        return RedisLog(url, create=create)
    except ImportError as error:
        raise InputError(
            f"{scheme}:// needs the package {error.name}: pip install 'cowclip-merlin[online]'"
        ) from None


def log_identity(url: str) -> str:
    """Return what stays the same when a log moves to another machine: its kind and its name.

    >>> log_identity("redis://:secret@host:6379/clicks"), log_identity("/data/clicks/")
    ('redis clicks', 'folder clicks')
    """
    if "://" not in url:
        return f"folder {Path(url).resolve().name}"
    address = parse_address(url, LOG_FORMS)
    return f"{address.scheme} {address.path}"


def shown_address(url: str) -> str:
    """Return an address without the user, password and options that it may have.

    >>> shown_address("redis://user:secret@host:6379/model"), shown_address("/a/folder@home")
    ('redis://host:6379/model', '/a/folder@home')
    """
    return parse_address(url, LOG_FORMS).name if "://" in url else url


def log_place(url: str) -> str:
    """Return where a log is, however its address is written; without user and password.

    >>> log_place("redis://:secret@host/a") == log_place("redis://host/a"), log_place("/x/../y")
    (True, '/y')
    """
    if "://" not in url:
        return str(Path(url).resolve())
    address = parse_address(url, LOG_FORMS)
    return f"{address.name} {address.options.get('db', '')}".rstrip()
