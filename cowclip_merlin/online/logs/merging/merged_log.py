"""Read the partitions of a topic as one log, in an order that a file keeps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import chain, islice, takewhile
from pathlib import Path

from cowclip_merlin.online.logs.merging.merge_order import MergeOrder, Places, Run
from cowclip_merlin.online.logs.message_log import Message, MessageLog, MessagesLost, Position


class ReadAhead:
    """Messages of one log that were read and not taken yet.

    Args:
        log: to read.
        place: where to begin.

    Attributes:
        place: before them.
        messages: in order.
        is_dry: do not ask the log again.
    """

    def __init__(self, log: MessageLog, place: Position) -> None:
        self._log, self.place, self.is_dry = log, place, False
        self.messages: deque[Message] = deque()

    def is_empty_at(self, place: Position) -> bool:
        """Whether the log was read up to a place, and nothing beyond."""
        return self.place == place and not self.messages

    def fill(self, place: Position, most: int, wait: float = 0.0) -> bool:
        """Return whether there are messages after a place, and read some if need be."""
        if self.place != place:
            self.messages.clear()
            self.place, self.is_dry = place, False
        if not self.messages and not self.is_dry:
            self.messages.extend(self._log.read(place, most, wait))
            self.is_dry = len(self.messages) < most
        return bool(self.messages)

    def pop(self, number: int) -> None:
        """Drop the first messages, which are taken."""
        for _ in range(number):
            self.place = self.messages.popleft().after


TURN = 64
"""Messages that one log gives at most before another one may."""

SLACK = 100
"""Milliseconds by which messages in a turn may be newer than the next one of another log."""

_LOOK = 0.05  # seconds in which a waiting reader looks at all logs
_SKIP = "`on_restart` skip goes on with the newest messages"


class MergedLog(MessageLog):
    """Several logs of one kind as one log.

    New messages are merged by the times at which they were appended, as far as logs know them, and
    none waits for a message that is not there. The order is written to a file before the messages
    are returned. To read again from a place in that order repeats it, also in another process.

    A position is (messages before it in all logs, place in log 0, place in log 1, ...), without
    logs at the end that were not begun; a place in log 0 alone is its position there. So positions
    stay valid if logs are added at the end, and those are read from their start.

    Args:
        parts: the logs. They are closed with this one.
        name: for messages.
        order: the file; only one process may read with it. None: the order is kept in memory.
        turn: messages of one log at most before another one may follow.

    Raises:
        InputError: later: the file is damaged.
        LogUnavailable: the server does not answer.

    >>> import tempfile
    >>> from cowclip_merlin.online.logs.file_log import FileLog
    >>> log = MergedLog([FileLog(tempfile.mkdtemp()) for _ in range(2)], name="clicks", turn=1)
    >>> after = log.append([b"a", b"b", b"c"])
    >>> [message.value for message in log.read(log.start(), most=10)], after[0]
    ([b'a', b'b', b'c'], 3)
    """

    def __init__(
        self,
        parts: Sequence[MessageLog],
        *,
        name: str,
        order: Path | None = None,
        turn: int = TURN,
    ) -> None:
        self.name, self._parts, self._turn = name, parts, turn
        self._zero: Position = (0,) * len(parts[0].start())
        self._file = order
        self._ahead = [ReadAhead(part, self._zero) for part in parts]
        self._next: int | None = None  # the log that the next message is appended to
        self._at: tuple[Position, int] | None = None  # a position, and what `find` returns for it
        self._read_from: Position | None = None  # of the last read, if it found nothing

    def append(self, values: Sequence[bytes]) -> Position:
        """Append messages to the logs in turn; each log keeps its own order."""
        n = len(self._parts)
        if self._next is None:
            self._next = min(range(n), key=lambda i: (self._parts[i].end()[0], i))
        first, self._next = self._next, (self._next + len(values)) % n
        shares = [values[(i - first) % n :: n] for i in range(n)]
        parts = zip(self._parts, shares, strict=True)
        return self._position([p.append(share) if share else p.end() for p, share in parts])

    def read(self, position: Position, most: int, wait: float = 0.0) -> list[Message]:
        """Read messages after a position; wait for the first one so many seconds."""
        places, until = self._places(position), time.monotonic() + wait
        begun, index = tuple(places), self._find(position, places)
        found: list[Message] = []
        if index is not None:
            found, index = self._repeat(index, places, most)
        while not found:
            found, runs = self._merge(places, most)
            if runs:
                index = self._keep(runs, index, begun)
            rest = until - time.monotonic()
            if found or rest <= 0:
                break
            self._wait(places, min(rest, _LOOK))
        self._at = None if index is None else (self._position(places), index)
        self._read_from = None if found else position
        return found

    def past_gaps(self, position: Position) -> Position:
        """Return the place up to which no log has a message; the order keeps it."""
        if self._at is None or self._at[1] < len(self._order.runs):
            return position
        if position not in (self._read_from, self._at[0]):
            return position
        places, runs = self._places(self._at[0]), []
        for i, ahead in enumerate(self._ahead):
            if ahead.is_empty_at(places[i]):
                after = self._parts[i].past_gaps(places[i])
                if after != places[i]:
                    places[i] = after
                    runs.append(Run(i, after))
        if runs:
            self._order.add(runs)
            self._at = self._position(places), len(self._order.runs)
        return self._at[0]

    def keep_from(self, position: Position, *, forget: bool = True) -> None:
        """Forget the order before a position, which must be one that is known.

        Args:
            position: that the caller has kept.
            forget: False keeps the order before it, too.

        Raises:
            MessagesLost: the order of the messages after it is not known.
        """
        places = tuple(self._places(position))
        index = self._find(position, places)
        if index is None and self._order.base is None and len(position) == len(self._zero):
            return  # other logs were added to a single one since
        if index is None and self._order.is_before(places):
            self._order.begin(places)
            self._at = None
            return
        if index is None:
            raise MessagesLost(
                f"{self.name}: the order of the messages after {position[0]:,} is not known; the "
                f"file with it was removed or is another run's ({_SKIP})"
            )
        if forget and self._order.forget(index, places) and self._at is not None:
            self._at = self._at[0], self._at[1] - index

    def start(self) -> Position:
        """Return the place before the oldest message; an order that is new begins there."""
        places = [part.start() for part in self._parts]
        if self._order.base is None:
            self._order.begin(tuple(places))
        return self._position(places)

    def end(self) -> Position:
        """Return the place after the newest message of each log."""
        return self._position([part.end() for part in self._parts])

    def trim(self, position: Position) -> None:
        """Remove messages of each log before a position."""
        for part, place in zip(self._parts, self._places(position), strict=True):
            part.trim(place)

    def close(self) -> None:
        """Close the logs and the file."""
        with ExitStack() as stack:
            for part in self._parts:
                stack.callback(part.close)
            if "_order" in vars(self):
                stack.callback(self._order.close)

    @cached_property
    def _order(self) -> MergeOrder:
        """Read when it is first needed: by then, the user has locked the folder of the file."""
        return MergeOrder(self._file)

    def _position(self, places: Sequence[Position]) -> Position:
        begun = places[: _begun(places)]
        if len(begun) == 1:
            return begun[0]
        return sum(place[0] for place in begun), *chain.from_iterable(begun)

    def _places(self, position: Position) -> list[Position]:
        """The place in each log.

        Raises:
            MessagesLost: it is a position of another kind of log, or of more logs.
        """
        width = len(self._zero)
        if len(position) == width:
            return [position, *[self._zero] * (len(self._parts) - 1)]
        numbers = position[1:]
        places = [numbers[i : i + width] for i in range(0, len(numbers), width)]
        if len(numbers) % width or sum(place[0] for place in places) != position[0]:
            raise MessagesLost(
                f"{self.name}: {list(position)} is no position of this log; it is of another kind "
                "of log"
            )
        self._check_parts(len(places))
        return places + [self._zero] * (len(self._parts) - len(places))

    def _check_parts(self, read: int) -> None:
        if read > len(self._parts):
            raise MessagesLost(
                f"{self.name}: has {len(self._parts)} partitions, but {read} were read before; the "
                f"topic was replaced ({_SKIP})"
            )

    def _find(self, position: Position, places: Sequence[Position]) -> int | None:
        if self._at is not None and self._at[0] == position:
            return self._at[1]
        return self._order.find(tuple(places))

    def _keep(self, runs: list[Run], index: int | None, begun: Places) -> int:
        """Write new runs to the file before their messages are returned."""
        if index is None:
            self._order.begin(begun)
        self._order.add(runs)
        return len(self._order.runs)

    def _repeat(self, index: int, places: list[Position], most: int) -> tuple[list[Message], int]:
        """Read messages whose order is known; move the places, and return the run after them."""
        found: list[Message] = []
        while index < len(self._order.runs) and len(found) < most:
            part, until = self._order.runs[index]
            self._check_parts(part + 1)
            ahead = self._ahead[part]
            ahead.is_dry = False
            if places[part] == until:
                index += 1
            elif ahead.fill(places[part], most) and ahead.messages[0].after <= until:
                turn = islice(ahead.messages, most - len(found))
                within = takewhile(lambda message, until=until: message.after <= until, turn)
                found += self._take(part, places, list(within))
            else:  # up to there is a gap
                self._check_end(part, until)
                places[part] = ahead.place = until
        return found, index

    def _check_end(self, part: int, until: Position) -> None:
        end = self._parts[part].end()
        if end[0] < until[0]:
            raise MessagesLost(
                f"{self._parts[part].name}: ends at message {end[0]:,}, but {until[0]:,} were "
                f"read before; the server has lost messages ({_SKIP})"
            )

    def _merge(self, places: list[Position], most: int) -> tuple[list[Message], list[Run]]:
        """Take new messages that are there, and move the places."""
        found: list[Message] = []
        runs: list[Run] = []
        for ahead in self._ahead:
            ahead.is_dry = False
        at_once = max(-(-most // len(self._parts)), self._turn)
        while len(found) < most:
            # Of logs without times, the one from which fewest messages were taken.
            heads = sorted(
                (ahead.messages[0].time or 0, places[i][0], i)
                for i, ahead in enumerate(self._ahead)
                if ahead.fill(places[i], at_once)
            )
            if not heads:
                break
            part, ahead = heads[0][2], self._ahead[heads[0][2]]
            newest = heads[1][0] + SLACK if len(heads) > 1 else float("inf")
            turn = islice(ahead.messages, min(self._turn, most - len(found)))
            old = takewhile(lambda message, newest=newest: (message.time or 0) <= newest, turn)
            found += self._take(part, places, list(old))
            runs.append(Run(part, places[part]))
        return found, runs

    def _take(
        self, part: int, places: list[Position], messages: Sequence[Message]
    ) -> Iterator[Message]:
        """Take the next messages of one log; the others stay where they are."""
        self._ahead[part].pop(len(messages))
        places[part] = messages[-1].after
        begun = _begun(places)
        if begun == 1:
            return iter(messages)
        first, later = places[:part], places[part + 1 : begun]
        count = sum(place[0] for place in (*first, *later))
        head, tail = tuple(chain.from_iterable(first)), tuple(chain.from_iterable(later))
        return (
            Message((count + after[0], *head, *after, *tail), value, time)
            for after, value, time, *_ in messages
        )

    def _wait(self, places: Sequence[Position], seconds: float) -> None:
        """Wait for a message of any log."""
        for ahead, place in zip(self._ahead, places, strict=True):
            ahead.is_dry = False
            if ahead.fill(place, self._turn, seconds / len(self._parts)):
                return


def _begun(places: Sequence[Position]) -> int:
    """The logs up to the last one that was begun, at least one."""
    return max((i for i, place in enumerate(places, start=1) if any(place)), default=1)
