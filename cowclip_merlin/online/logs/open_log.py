"""Open a log from the text that a user gives: a folder, redis://HOST/NAME or kafka://HOST/NAME."""

from __future__ import annotations

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.logs.message_log import MessageLog

FORMS = "a folder, redis://HOST:6379/STREAM or kafka://HOST:9092/TOPIC"
"""What `open_log` takes, for help texts."""


def open_log(url: str, *, create: bool = False) -> MessageLog:
    """Open a log.

    Args:
        url: a folder, or the address of a Redis Stream or of a Kafka topic.
        create: make the log if it is not there, as those who append do.

    Raises:
        InputError: the address is wrong, there is no such log, the server does not answer, or a
            package is missing.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return FileLog(url, create=create)
    raise InputError(f"{url}: unknown kind of log {scheme!r}; give {FORMS}")
