"""A log in a Redis Stream (Redis from version 7, or Valkey).

Each message is an entry with one field. Entries of other programs are read, too: the value of
their first field is the message.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from redis import Redis
from redis.backoff import NoBackoff
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
from redis.retry import Retry

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import (
    LogRefused,
    LogUnavailable,
    Message,
    MessageLog,
    MessagesLost,
    Position,
    in_parts,
    numbers_of,
)
from cowclip_merlin.online.logs.open_log import LogAddress, host_and_port, parse_address
from cowclip_merlin.types import JsonObject

if TYPE_CHECKING:
    from redis.client import Pipeline

FORM = "redis://[USER:PASSWORD@]HOST[:6379]/STREAM[?db=0]"
TIMEOUT = 5.0
"""Seconds after which a server that does not answer is unavailable."""

_OPTIONS = ("db", "ssl_ca_certs")
_AT_ONCE = 1 << 23  # bytes of messages in one command
_MANY = 50_000  # messages in one
_BLOCK = 1.0  # seconds that the server waits for a message at most, well below the time-out
_STATE = """
local reply = redis.pcall('XINFO', 'STREAM', KEYS[1])
if reply.err then
  if string.find(reply.err, 'no such key') then return {0, 0, '', '0-0'} end
  return reply
end
local state = {}
for i = 1, #reply, 2 do state[reply[i]] = reply[i + 1] end
local first = state['first-entry']
return {state['entries-added'] or -1, state['length'], first and first[1] or '',
        state['last-generated-id']}
"""  # XINFO alone would send the first and the last message, which may be large
# A script runs as a whole, and takes half the time of a transaction of many commands.
_APPEND = "for i = 1, #ARGV do redis.call('XADD', KEYS[1], '*', 'm', ARGV[i]) end" + _STATE

Id = tuple[int, int]


class _State(NamedTuple):
    """Of a stream at one moment."""

    added: int  # messages ever appended
    trimmed: int  # messages removed
    first: Id | None  # of the oldest message
    last: Id  # of the newest message ever appended


class RedisLog(MessageLog):
    """A log in a Redis Stream. A position is (messages before it, and the two numbers of an id).

    Args:
        url: redis://[USER:PASSWORD@]HOST[:6379]/STREAM, or rediss:// for TLS. Options: `db`, the
            number of the database, and `ssl_ca_certs`, a file with the certificates to trust.
        create: make an empty stream if there is none.

    Raises:
        InputError: the address is wrong, or there is no such stream.
        LogRefused: the server refuses access, or the name is that of another type.
        LogUnavailable: the server does not answer.
    """

    def __init__(self, url: str, *, create: bool = False) -> None:
        address = parse_address(url, FORM)
        address.check_options(_OPTIONS)
        self.name, self._stream = address.name, address.path
        host, port = host_and_port(address, 6379)
        database = address.options.get("db", "0")
        if not database.isdecimal():
            raise InputError(f"{self.name}: db={database} is no number; give one such as db=0")
        self._redis = Redis(
            host=host,
            port=port,
            db=int(database),
            username=address.user or None,
            password=address.password or None,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            retry=Retry(NoBackoff(), 0),  # a second XADD would append twice
            protocol=2,
            **_tls(address),
        )
        with self._errors():
            self._prepare(create)

    def append(self, values: Sequence[bytes]) -> Position:
        """Append messages; of some megabytes at a time all or none."""
        after = None
        for part in in_parts(values, most=_MANY, most_bytes=_AT_ONCE):
            with self._errors():
                state = _state_of(self._redis.eval(_APPEND, 1, self._stream, *part))
                after = (state.added, *state.last)
        return after or self.end()

    def read(self, position: Position, most: int, wait: float = 0.0) -> list[Message]:
        """Read messages after a position; wait for the first one so many seconds."""
        numbers_of(self.name, position, 3)
        until = time.monotonic() + wait
        with self._errors():
            while True:
                found = self._read(position, most)
                rest = until - time.monotonic()
                if found or rest <= 0:
                    return found
                block = max(int(1e3 * min(rest, _BLOCK)), 1)
                self._redis.xread({self._stream: _text(position[1:])}, count=1, block=block)

    def start(self) -> Position:
        """Return the place before the oldest message."""
        with self._errors():
            state = self._state()
        if state.first is None:
            return state.added, *state.last
        return (state.trimmed, *_before(state.first)) if state.trimmed else (0, 0, 0)

    def end(self) -> Position:
        """Return the place after the newest message."""
        with self._errors():
            state = self._state()
        return state.added, *state.last

    def trim(self, position: Position) -> None:
        """Remove the messages before a position."""
        count, milliseconds, number = numbers_of(self.name, position, 3)
        with self._errors():
            state = self._state()
            if count > state.added or (milliseconds, number) > state.last:
                raise MessagesLost(f"{self.name}: ends before message {count:,}; nothing trimmed")
            oldest = _text((milliseconds, number + 1))
            self._redis.xtrim(self._stream, minid=oldest, approximate=False)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _prepare(self, create: bool) -> None:
        """Make an empty stream if there is none, or refuse that there is none."""
        missing = not self._redis.exists(self._stream)
        if missing and not create:
            raise InputError(
                f"{self.name}: no such stream; check the name, or start the writer first"
            )
        if missing:  # a group makes an empty stream; no other command does
            group = f"create-{uuid.uuid4().hex}"
            self._redis.xgroup_create(self._stream, group, mkstream=True)
            self._redis.xgroup_destroy(self._stream, group)
        if self._state().added < 0:
            raise InputError(f"{self.name}: the server is too old; use Redis 7 or newer, or Valkey")

    def _state(self) -> _State:
        return _state_of(self._redis.eval(_STATE, 1, self._stream))

    def _read(self, position: Position, most: int) -> list[Message]:
        """Read in parts, so that no reply is very large."""
        found: list[Message] = []
        size = 1 << 16  # bytes of a message, at a guess
        while len(found) < most:
            part, state = self._read_part(position, min(most - len(found), -(-_AT_ONCE // size)))
            found += part
            if not part or part[-1].after[0] >= state.added:
                break
            position = part[-1].after
            size = max(sum(len(message.value) for message in part) // len(part), 1)
        return found

    def _read_part(self, position: Position, most: int) -> tuple[list[Message], _State]:
        count, *numbers = position
        with self._redis.pipeline() as commands:
            commands.xrange(self._stream, "(" + _text(numbers), count=most)
            commands.eval(_STATE, 1, self._stream)
            entries, state = _results(commands)
        state = _state_of(state)
        self._check(position, state)
        return [
            Message((count + i, *_id(key)), next(iter(values.values())))
            for i, (key, values) in enumerate(entries, start=1)
        ], state

    def _check(self, position: Position, state: _State) -> None:
        """Refuse a position whose next messages, or those before it, are gone."""
        count, *numbers = position
        if count < state.trimmed:
            reason = f"begins at message {state.trimmed:,}"
        elif count > state.added:
            reason = f"ends at message {state.added:,}"
        elif count > state.trimmed and (state.first is None or state.first > tuple(numbers)):
            reason = "holds other messages"
        else:
            return
        raise MessagesLost(
            f"{self.name}: {reason}, but message {count:,} is asked for; "
            "the stream was trimmed, or the server has lost it"
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Tell what the server, or its absence, means in one line without the password."""
        try:
            yield
        except RedisError as error:
            raise log_error(self.name, error) from None


def _tls(address: LogAddress) -> JsonObject:
    """Settings of an encrypted connection; none for redis://."""
    if address.scheme != "rediss":
        return {}
    file = address.options.get("ssl_ca_certs")
    if file is not None and not Path(file).is_file():
        raise InputError(f"{address.name}: ssl_ca_certs={file}: no such file; check the path")
    return {"ssl": True, "ssl_ca_certs": file}


def _results(commands: Pipeline) -> list[Any]:
    """Run a transaction; an error in it is raised."""
    results = commands.execute(raise_on_error=False)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _state_of(reply: Sequence[Any]) -> _State:
    added, length, first, last = reply
    return _State(added, added - length, _id(first) if first else None, _id(last))


def _id(text: bytes) -> Id:
    milliseconds, number = text.split(b"-")
    return int(milliseconds), int(number)


def _text(numbers: Sequence[int]) -> str:
    return "-".join(map(str, numbers))


def _before(first: Id) -> Id:
    milliseconds, number = first
    return (milliseconds, number - 1) if number else (milliseconds - 1, (1 << 64) - 1)


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
