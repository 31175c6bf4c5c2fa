"""Open a log from the text that a user gives: a folder, redis://HOST/NAME or kafka://HOST/NAME."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.address import parse_address
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.logs.merging.followed_log import FollowedLog
from cowclip_merlin.online.logs.merging.merged_log import MergedLog
from cowclip_merlin.online.logs.message_log import MessageLog, SeveralParts


@dataclass(frozen=True, kw_only=True)
class LogKind:
    """A kind of log on a server.

    Attributes:
        path: module and class, a `MessageLog` that takes the address and `create`.
        form: how its address is written, for help texts; "": as that of another kind.
    """

    path: str
    form: str = ""

    def open(self, url: str, *, create: bool) -> MessageLog:
        """Open a log; its module is imported only now, since it needs the server's package."""
        module, name = self.path.rsplit(".", 1)
        return getattr(importlib.import_module(module), name)(url, create=create)


_REDIS = "cowclip_merlin.online.logs.redis_log.RedisLog"
LOG_KINDS: Mapping[str, LogKind] = MappingProxyType(
    {
        "redis": LogKind(path=_REDIS, form="redis://HOST:6379/STREAM"),
        "rediss": LogKind(path=_REDIS),
        "kafka": LogKind(
            path="cowclip_merlin.online.logs.kafka_log.KafkaLog", form="kafka://HOST:9092/TOPIC"
        ),
    }
)
"""Kinds of logs by the scheme of their address. To add one, write its class and an entry."""


def log_forms() -> str:
    """Return how the address of a log may be written, for help texts and errors.

    >>> log_forms()
    'a folder, redis://HOST:6379/STREAM or kafka://HOST:9092/TOPIC'
    """
    *first, last = ["a folder", *(kind.form for kind in LOG_KINDS.values() if kind.form)]
    return f"{', '.join(first)} or {last}"


def open_log(
    url: str,
    *,
    create: bool = False,
    order: str | Path | None = None,
    follow: bool = False,
) -> MessageLog:
    """Open a log.

    Args:
        url: a folder, or an address whose scheme is in `LOG_KINDS`. The classes there tell its
            options.
        create: make the log if it is not there, as those who append do.
        order: file of one reader, who then may read a Kafka topic of several partitions: it takes
            the order in which this reader has merged them. None: such a topic is refused.
        follow: read such a topic in the order that another reader writes to this file.

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
    if scheme not in LOG_KINDS:
        what = f"unknown kind of log {scheme!r}; give {log_forms()}"
        raise InputError(f"{shown_address(url)}: {what}")
    try:
        return LOG_KINDS[scheme].open(url, create=create)
    except SeveralParts as several:
        if order is None:
            raise
        return _merged(url, several.addresses, Path(order), follow=follow)
    except ImportError as error:
        raise InputError(
            f"{scheme}:// needs the package {error.name}: pip install 'cowclip-merlin[online]'"
        ) from None


def open_to_append(url: str) -> MessageLog:
    """Open a log to append to; partitions of a Kafka topic get messages in turn.

    Args:
        url: as for `open_log`; the log is made if it is not there.

    Raises:
        InputError: the address is wrong, or a package is missing.
        LogUnavailable: the server does not answer.
    """
    try:
        return open_log(url, create=True)
    except SeveralParts as several:
        return _merged(url, several.addresses, None)


def _merged(
    url: str, addresses: Sequence[str], order: Path | None, *, follow: bool = False
) -> MessageLog:
    with ExitStack() as opened:
        parts = [opened.enter_context(closing(open_log(each))) for each in addresses]
        kind = FollowedLog if follow and order is not None else MergedLog
        log = kind(parts, name=shown_address(url), order=order)
        opened.pop_all()
    return log


def log_identity(url: str) -> str:
    """Return what stays the same when a log moves to another machine: its kind and its name.

    >>> log_identity("redis://:secret@host:6379/clicks"), log_identity("/data/clicks/")
    ('redis clicks', 'folder clicks')
    """
    if "://" not in url:
        return f"folder {Path(url).resolve().name}"
    address = parse_address(url, log_forms())
    return f"{address.scheme} {address.path}"


def shown_address(url: str) -> str:
    """Return an address without the user, password and options that it may have.

    >>> shown_address("redis://user:secret@host:6379/model"), shown_address("/a/folder@home")
    ('redis://host:6379/model', '/a/folder@home')
    """
    return parse_address(url, log_forms()).name if "://" in url else url


def log_place(url: str) -> str:
    """Return where a log is, however its address is written; without user and password.

    >>> log_place("redis://:secret@host/a") == log_place("redis://host/a"), log_place("/x/../y")
    (True, '/y')
    """
    if "://" not in url:
        return str(Path(url).resolve())
    address = parse_address(url, log_forms())
    return f"{address.name} {address.options.get('db', '')}".rstrip()
