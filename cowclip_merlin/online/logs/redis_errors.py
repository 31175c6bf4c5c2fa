"""What the errors of Redis mean: whether waiting helps, and what does if not."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
    TryAgainError,
)

from cowclip_merlin.online.logs.message_log import LogRefused, LogUnavailable

_REFUSED = {
    AuthenticationError: "check user and password",
    AuthorizationError: "check user and password",
    NoPermissionError: "check the user's rights",
}
_WAITING = (
    ClusterDownError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    TimeoutError,
    TryAgainError,
)
_WAITING_WORDS = ("BUSY", "LOADING", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "UNBLOCKED")
"""Errors that go away: a script runs, memory or the disk is full, another server takes over."""

_REMEDIES = {
    "NOAUTH": "check user and password",
    "NOPERM": "check the user's rights",
    "can't run this command": "check the user's rights",
    "DB index": "check db= in the address",
    "CERTIFICATE_VERIFY_FAILED": "check the certificates and ssl_ca_certs",
    "WRONG_VERSION_NUMBER": "the server does not use TLS there; check redis:// and the port",
}
"""Words of an error that stays -> what helps."""


def log_error(name: str, error: RedisError) -> LogRefused | LogUnavailable:
    """Return what an error means, in one line without the password.

    Args:
        name: of the log.
        error: of a call.

    >>> log_error("redis://h/a", ReadOnlyError("You can't write against a read only replica."))
    LogUnavailable("redis://h/a: You can't write against a read only replica; is the server \
running?")
    >>> log_error("redis://h/a", AuthenticationError("invalid username-password pair"))
    LogRefused('redis://h/a: invalid username-password pair; check user and password')
    """
    reason = _reason(error)
    if reason.startswith("WRONGTYPE"):
        return LogRefused(f"{name}: is not a stream; give another name")
    remedy = next((remedy for kind, remedy in _REFUSED.items() if isinstance(error, kind)), None)
    remedy = remedy or next((x for words, x in _REMEDIES.items() if words in reason), None)
    if remedy is not None:
        return LogRefused(f"{name}: {reason}; {remedy}")
    if isinstance(error, _WAITING) or reason.startswith(_WAITING_WORDS):
        return LogUnavailable(f"{name}: {reason}; is the server running?")
    return LogRefused(f"{name}: {reason}; check the address and the server's version")


def _reason(error: Exception) -> str:
    """The error in one line, without the command, which may be long."""
    text = str(error).rpartition("caused error: ")[2]
    return " ".join(text.split())[:200].rstrip(".") or type(error).__name__
