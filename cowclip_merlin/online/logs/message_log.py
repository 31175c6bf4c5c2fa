"""A log of messages: what every kind can do, its parts, and waiting for a server."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from cowclip_merlin.errors import InputError, Unavailable

Position = tuple[int, ...]
"""A place between two messages of one log.

Positions of one log are ordered. The first number counts the messages that were ever appended
before this place, so a difference of first numbers is a number of messages. The other numbers
belong to the kind of log. JSON keeps a position as a list.
"""


class Message(NamedTuple):
    """A message that was read.

    Attributes:
        after: the place after the message; reading from there gives the next one.
        value: the message.
        time: milliseconds since 1970 at which it was appended; None if the log does not know.
        partition: of a topic with several; None in a log with one order.
        place: the offset after it in that partition.
    """

    after: Position
    value: bytes
    time: int | None = None
    partition: int | None = None
    place: int = 0


class MessagesLost(InputError):
    """The log does not have the messages after a position any more, or lost those before it."""


class LogUnavailable(Unavailable):
    """The server of a log does not answer now; the same call may succeed later."""


class LogRefused(InputError):
    """The server of a log refuses a call, and would refuse it later, too.

    A password is wrong, for example, or rights are missing.
    """


_WAIT = 1.0  # seconds for messages that were read before


class MessageLog(ABC):
    """An append-only message log. Use an object from one thread at a time.

    Attributes:
        name: as the user gave it, for error messages.
    """

    name: str

    @abstractmethod
    def append(self, values: Sequence[bytes]) -> Position:
        """Append messages and wait until the log has acknowledged all of them.

        Returns:
            The place after the last of them. Others may append in between.

        Raises:
            LogUnavailable: not acknowledged; none, some or all of them may be in the log.
            LogRefused: the server refuses them, for example as they are too large.
        """

    @abstractmethod
    def read(self, position: Position, most: int, wait: float = 0.0) -> list[Message]:
        """Read messages after a position.

        Args:
            position: from `start`, `end`, `append` or a message.
            most: messages to return at most.
            wait: seconds to wait for a first message if there is none.

        Returns:
            Messages in order, without gaps; none only if none is there.

        Raises:
            MessagesLost: messages after the position were trimmed, or the log has lost messages
                before it.
            LogUnavailable: the server does not answer.
            LogRefused: the server refuses to answer.
        """

    def past_gaps(self, position: Position) -> Position:
        """Return the place up to which the last `read` has seen that no message follows.

        Args:
            position: that was read from last, or the place after the last message of that read.

        Returns:
            The position, or a later place: in Kafka, ends of transactions count as messages.
        """
        return position

    def between(self, position: Position, until: Position) -> list[Message]:
        """Read the messages between two positions, which were read before.

        Returns:
            All of them, in an order that depends on nothing else; see `in_order`.

        Raises:
            MessagesLost: some of them are not there.
            LogUnavailable: the server does not answer.
            LogRefused: the server refuses to answer.
        """
        found: list[Message] = []
        while position[0] < until[0]:
            part = self.read(position, until[0] - position[0], _WAIT)
            if not part:
                raise MessagesLost(
                    f"{self.name}: ends at message {position[0]:,}, but {until[0]:,} were read "
                    "before; the log has lost messages (`on_restart` skip goes on without them)"
                )
            found += part
            position = part[-1].after
        return found

    @abstractmethod
    def start(self) -> Position:
        """Return the place before the oldest message that is still there."""

    @abstractmethod
    def end(self) -> Position:
        """Return the place after the newest message."""

    def has_reached(self, position: Position, end: Position) -> bool:
        """Return whether no message before `end` is after a position."""
        return position[0] >= end[0]

    @abstractmethod
    def trim(self, position: Position) -> None:
        """Remove messages before a position; some of them may stay."""

    def close(self) -> None:  # noqa: B027
        """Release connections and files, if there are any; append nothing afterwards."""


def numbers_of(name: str, position: Position, count: int) -> Position:
    """Return a position, which must have so many numbers.

    Args:
        name: of the log.
        position: from a user of the log, who may have kept it in a file.
        count: of numbers in the positions of this kind of log.

    Raises:
        MessagesLost: it is a position of another kind of log.
    """
    if len(position) != count:
        raise MessagesLost(
            f"{name}: {list(position)} is no position of this log; it is of another kind of log"
        )
    return position


def lag(position: Position, end: Position) -> int:
    """Return the number of messages from a position to another one.

    >>> lag((3, 0, 120), (5, 0, 200))
    2
    """
    return max(end[0] - position[0], 0)


def in_parts(values: Sequence[bytes], *, most: int, most_bytes: int) -> Iterator[Sequence[bytes]]:
    """Yield messages in parts; a message that is larger than a part is one by itself.

    Args:
        values: messages.
        most: number of messages of a part at most.
        most_bytes: bytes of the messages of a part at most.

    >>> list(in_parts([b"aa", b"bb", b"c", b"ddddd"], most=2, most_bytes=4))
    [[b'aa', b'bb'], [b'c'], [b'ddddd']]
    """
    first = size = 0
    for i, value in enumerate(values):
        if i > first and (i - first == most or size + len(value) > most_bytes):
            yield values[first:i]
            first, size = i, 0
        size += len(value)
    if first < len(values):
        yield values[first:]


FIRST_PAUSE, LONGEST_PAUSE = 0.2, 1.0
"""Seconds before the second call and between later ones; each pause is twice the one before."""

_LOOK = 0.2
"""Seconds after which a stop is seen at the latest."""

_T = TypeVar("_T")


class Retrying:
    """Makes calls of logs again and again while a log is away, until a stop.

    Only `LogUnavailable` means away. A refusal, such as of a password, is raised at once.

    Args:
        warn: takes the error once for each time that a log is away.
        stopped: whether to give up.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        warn: Callable[[LogUnavailable], object],
        *,
        stopped: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._warn, self._stopped, self._sleep = warn, stopped, sleep
        self._pause = 0.0  # the last one; 0 while the log answers

    def __call__(self, call: Callable[[], _T]) -> _T | None:
        """Return what a call returns once it succeeds; None after a stop."""
        while not self._stopped():
            try:
                answer = call()
            except LogUnavailable as error:
                self.wait(error)
            else:
                self.answered()
                return answer
        return None

    def wait(self, error: LogUnavailable) -> None:
        """Warn of the first error, and wait before the next call, or until a stop."""
        if not self._pause:
            self._warn(error)
        self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
        left = self._pause
        while left > 0 and not self._stopped():
            self._sleep(min(left, _LOOK))
            left -= _LOOK

    def answered(self) -> None:
        """Note that the log has answered."""
        self._pause = 0.0
