"""Read batches of events from a message log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.events import Damage, Events
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.messages import encode_messages, refuse_ahead
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.logs.message_log import (
    LogUnavailable,
    Message,
    MessageLog,
    Position,
    Retrying,
)
from cowclip_merlin.online.training.batch_journal import Range, RefusedMessages, are_in
from cowclip_merlin.online.training.repeats import RepeatFilter

WAIT = 0.05
"""Seconds that one call waits for messages at most."""

_READ_AT_LEAST = 256


class Decoder(Protocol):
    """Makes events of messages, and tells the time."""

    def decode(self, messages: Sequence[Message]) -> tuple[Events, Damage]:
        """Return the events of messages, and what is wrong with some."""

    def now(self) -> float:
        """Return seconds since 1970; messages from far beyond are refused."""


class _OwnDecoder:
    """Decodes in this process; a `Decoder`."""

    def __init__(self, features: LogFeatures) -> None:
        self._features = features

    def decode(self, messages: Sequence[Message]) -> tuple[Events, Damage]:
        """Return the events of messages, and what is wrong with some."""
        values, places = [each.value for each in messages], [each.after for each in messages]
        return encode_messages(values, self._features, places)

    def now(self) -> float:
        """Return the time of this machine."""
        return time.time()


class _Piece(NamedTuple):
    """Events that were read, and the place in the log after each of them."""

    events: Events
    after: list[Position]


class EventReader:
    """Cuts a log into batches. A batch depends on the log, the position and its size only.

    One thing depends on the clock: a message whose time is too far ahead of it is refused. So a
    restart that trains batches again must refuse the same messages as before.

    Args:
        log: of events.
        features: their columns.
        position: where to start.
        damaged: counts the messages that are no events.
        repeats: drops events by key; None keeps all.
        refused: the messages to refuse instead of those ahead of the clock, until `use_clock` is
            called; None: use the clock.
        warn: is called with a line if the log does not answer.
        decoder: decodes messages; None: this process does, by its clock.

    Attributes:
        position: the place after the last event of the last batch.
    """

    def __init__(
        self,
        log: MessageLog,
        features: LogFeatures,
        position: Position,
        *,
        damaged: DamagedMessages,
        repeats: RepeatFilter | None = None,
        refused: Sequence[Range] | None = None,
        warn: Callable[[str], None] = lambda _: None,
        decoder: Decoder | None = None,
    ) -> None:
        self._decoder = decoder or _OwnDecoder(features)
        self._log, self._features, self.position = log, features, position
        self._damaged, self._repeats = damaged, repeats
        self._refused, self._ahead = refused, RefusedMessages()
        self._taken = self._read_to = position
        self._waiting: list[_Piece] = []  # was read, and is in no batch yet
        self._batch: list[_Piece] = []  # of the next batch, which is not full yet
        self._batch_began = 0.0
        self._end, self._end_asked = position, -1.0
        self._retrying = Retrying(lambda error: warn(f"{error}; training waits"))

    @property
    def pending(self) -> int:
        """Events of the next batch so far."""
        return sum(len(piece.events) for piece in self._batch)

    def next_batch(
        self, size: int, *, max_wait: float = 0.0, wait: float = WAIT, rest: bool = False
    ) -> Events | None:
        """Return the next events; None if they are not there yet.

        Args:
            size: events in the batch.
            max_wait: seconds after which the batch is returned although it is not full.
            wait: seconds to wait for messages in this call.
            rest: return what is there, although the batch is not full.
        """
        until, asked = time.monotonic() + wait, False
        while True:
            self._take(size)
            now = time.monotonic()
            late = self._batch and max_wait and now - self._batch_began >= max_wait
            if self.pending == size or (self._batch and (rest or late)):
                return self._finish()
            if asked and now >= until:  # also if messages come that give no events
                return None
            self._read(size - self.pending, max(until - now, 0.0))
            asked = True

    def take_batch(self, size: int) -> Events | None:
        """Return the next events without reading; None if they were not read."""
        self._take(size)
        return self._finish() if self.pending == size else None

    def use_clock(self) -> None:
        """Refuse messages by the clock from now on, also those that are in no batch yet."""
        self._refused = None
        self._waiting.clear()
        self._read_to = self._taken

    def take_refused(self) -> list[Range]:
        """Return the messages that the clock refused, up to the last batch; each once."""
        return self._ahead.take(self.position[0])

    def peek(self) -> Events | None:
        """Return some of the next events without taking them; None if there are none yet."""
        if not self._waiting:
            self._read(_READ_AT_LEAST, WAIT)
        return self._waiting[0].events if self._waiting else None

    def read_exactly(self, count: int, place: int, *, looks: int = 60) -> None:
        """Read so many messages, which another process has read already.

        Args:
            count: of messages.
            place: first number of the position after the last of them.
            looks: seconds to wait for them at most.

        Raises:
            InputError: they are not there.
        """
        found: list[Message] = []
        position = self._read_to
        for _ in range(looks):
            found += self._log.read(position, count - len(found), 1.0)
            position = found[-1].after if found else position
            if len(found) == count:
                break
        if len(found) < count or found[-1].after[0] != place:
            raise InputError(
                f"{self._log.name}: the messages after {list(self._read_to)} are not those that "
                "another worker has read; let all workers read the same log"
            )
        self._decode(found)

    def lag(self) -> int:
        """Return about how many messages are in no batch yet; asks the log twice a second."""
        now = time.monotonic()
        if now - self._end_asked > 0.5:
            try:
                self._end, self._end_asked = self._log.end(), now
            except LogUnavailable as error:
                self._retrying.wait(error)
        return max(self._end[0] - self.position[0], 0)

    def at_end(self) -> bool:
        """Return whether the log has no more messages, though a batch may be in progress."""
        if self._waiting:
            return False
        try:
            return self._log.end()[0] <= self._read_to[0]
        except LogUnavailable as error:
            self._retrying.wait(error)
            return False

    def _take(self, size: int) -> None:
        """Move events from those that wait to the batch, without the repeats."""
        while self._waiting and (room := size - self.pending) > 0:
            piece = self._waiting.pop(0)
            head, tail = _split(piece, room)
            if tail is not None:
                self._waiting.insert(0, tail)
            self._taken = head.after[-1]
            head = self._without_repeats(head)
            if len(head.events):
                self._batch_began = self._batch_began if self._batch else time.monotonic()
                self._batch.append(head)
        if not self._batch:
            self.position = self._taken

    def _without_repeats(self, piece: _Piece) -> _Piece:
        if self._repeats is None:
            return piece
        new = self._repeats.new(piece.events.keys, piece.events.times)
        return _Piece(piece.events.filter(new), piece.after)

    def _finish(self) -> Events:
        batch, self._batch = self._batch, []
        self.position = self._taken
        return Events.concatenate([piece.events for piece in batch])

    def _read(self, wanted: int, wait: float) -> None:
        """Read messages, if there are some."""
        try:
            messages = self._log.read(self._read_to, max(wanted, _READ_AT_LEAST), min(wait, WAIT))
            self._retrying.answered()
        except LogUnavailable as error:
            self._retrying.wait(error)
            return
        if messages:
            self._decode(messages)
        else:
            self._read_to = self._log.past_gaps(self._read_to)
            self._skip_to(self._read_to)

    def _decode(self, messages: list[Message]) -> None:
        events, damage = self._decoder.decode(messages)
        self._refuse_ahead(messages, events, damage)
        self._damaged.add(messages, damage.reasons)
        good = damage.good(len(messages))
        self._read_to = messages[-1].after
        places = np.flatnonzero(good).tolist()
        if not places:
            self._skip_to(messages[-1].after)
            return
        # A batch ends before the next event, not after its own: damaged ones in between are past.
        after = [messages[i - 1].after for i in places[1:]] + [messages[-1].after]
        self._waiting.append(_Piece(events.filter(good), after))

    def _refuse_ahead(self, messages: list[Message], events: Events, damage: Damage) -> None:
        """Refuse the messages ahead of the clock, or those that were refused before."""
        numbers = np.array([message.after[0] for message in messages], np.int64)
        if self._refused is None:
            right = damage.good(len(messages))
            refuse_ahead(events.times, self._decoder.now(), self._features, damage)
            good = damage.good(len(messages))
            self._ahead.add(numbers, right & ~good, good)
        else:
            again = are_in(self._refused, numbers)
            damage.add(again, lambda _: "was refused before as in the future")

    def _skip_to(self, position: Position) -> None:
        """Move the place after the last event past messages that are no events."""
        if self._waiting:
            self._waiting[-1].after[-1] = position
        else:
            self._taken = position


def _split(piece: _Piece, size: int) -> tuple[_Piece, _Piece | None]:
    if len(piece.events) <= size:
        return piece, None
    return (
        _Piece(piece.events.filter(slice(size)), piece.after[:size]),
        _Piece(piece.events.filter(slice(size, None)), piece.after[size:]),
    )
