"""Messages of a log that were read before they are needed."""

from __future__ import annotations

from collections import deque

from cowclip_merlin.online.logs.message_log import Message, MessageLog, Position


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
