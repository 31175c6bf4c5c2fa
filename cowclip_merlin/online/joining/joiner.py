"""Join batches of messages, and write each example once, even if the process is killed.

One transaction keeps the changes of the state, the positions in both logs, and an *outbox*: the
examples and the damaged messages of this batch, and the end of the examples log before them. They
are appended after it. A new process compares that end with the log, and appends what is missing.
So each example is written once if nobody else writes to that log, and the state file survives.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.columns import text_of_value
from cowclip_merlin.online.events.events import Damage, encode_times
from cowclip_merlin.online.events.features import LATE, SAMPLE_RATE
from cowclip_merlin.online.events.messages import decode_messages, read_column, refuse_ahead
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.joining.state import (
    CLICKED,
    LATE_CLICK,
    NO_CLICK,
    JoinCounts,
    JoinState,
    Row,
)
from cowclip_merlin.online.logs.damaged_messages import MOST_BYTES, DamagedMessages
from cowclip_merlin.online.logs.message_log import LogUnavailable, Message, MessageLog, Position
from cowclip_merlin.online.logs.open_log import log_identity
from cowclip_merlin.tables.layout import LATEST
from cowclip_merlin.types import Json, JsonObject

if TYPE_CHECKING:
    from cowclip_merlin.online.events.features import LogFeatures

IMPRESSIONS, ACTIONS = "impressions", "actions"
CLOSED_AT_ONCE = 20_000
"""Impressions whose windows end in one transaction, about."""

_FIXED = ("window", "late", "lateness")  # settings that the state depends on


@dataclass
class _Source:
    """What the messages of a log must have, and how far it was read."""

    required: frozenset[str]
    damaged: DamagedMessages
    position: Position
    newest: int | None = None  # time of its newest event
    outbox: list[tuple[Position, str, str]] = field(default_factory=list)  # place, bytes, reason

    def set_aside(self, messages: Sequence[Message], reasons: Mapping[int, str]) -> None:
        """Put damaged messages into the outbox; JSON keeps bytes as latin-1."""
        self.outbox = [
            (messages[i].after, messages[i].value[:MOST_BYTES].decode("latin-1"), reasons[i])
            for i in sorted(reasons)
        ]

    def deliver(self) -> None:
        """Write those of the outbox that the file does not have yet."""
        messages = [Message(tuple(after), text.encode("latin-1")) for after, text, _ in self.outbox]
        self.damaged.add(messages, {i: reason for i, (_, _, reason) in enumerate(self.outbox)})
        self.outbox = []


class Joiner:
    """The join of two logs. Create it again with the same state to go on after a crash.

    Args:
        impressions: log of impressions.
        actions: log of clicks.
        to: log of examples, which nobody else writes to.
        features: the columns; `key` is needed.
        settings: of the join.
        state: of the same settings.
        damaged: two files that take the damaged messages, of impressions and of clicks.
        clock: seconds since 1970.

    Raises:
        InputError: the features name no key, or the state is of other logs or settings.

    Attributes:
        counts: what was read and written so far.
        watermark: event time that both logs have come to; None before the first.
        before: examples that the log had when a new state was made; 0 with one that goes on.
    """

    def __init__(
        self,
        impressions: MessageLog,
        actions: MessageLog,
        to: MessageLog,
        features: LogFeatures,
        settings: JoinSettings,
        state: JoinState,
        damaged: tuple[Path, Path],
        clock: Callable[[], float] = time.time,
    ) -> None:
        if features.key is None:
            raise InputError("the features file names no key; add `key:` with the request's column")
        self._to, self._features, self._settings, self._state = to, features, settings, state
        self._clock = clock
        needed = {features.key, features.time}
        inputs = {column.name for column in features.columns_of_model if not column.optional}
        self._sources = {
            name: _Source(frozenset(columns), DamagedMessages(file), log.start())
            for name, log, columns, file in (
                (IMPRESSIONS, impressions, needed | inputs, damaged[0]),
                (ACTIONS, actions, needed, damaged[1]),
            )
        }
        self._ends = {
            (label, late): settings.example_end(features.label, label, late=late).encode()
            for label, late in ((0, False), (1, False), (1, True))
        }
        names = (features.label, SAMPLE_RATE, LATE)
        texts = {json.dumps(name, ensure_ascii=ascii) for name in names for ascii in (True, False)}
        self._names = [text.encode() for text in texts]
        logs = {"to": to, IMPRESSIONS: impressions, ACTIONS: actions}
        self._made_for = {k: log_identity(log.name) for k, log in logs.items()}
        self._made_for |= {"key": features.key} | {k: getattr(settings, k) for k in _FIXED}
        self._due: list[tuple[int, bytes]] = []  # times and examples of this transaction
        self._is_sure = False  # whether `_sent` is the end of the examples log
        self.counts, self.watermark = JoinCounts(), None
        progress, self._outbox = state.progress()
        self.before = 0
        if progress is None:
            self.before = self._sent = to.end()[0]
            with state.transaction():
                self._save()
        else:
            self._restore(progress)
        self.deliver()

    def _restore(self, progress: JsonObject) -> None:
        """Take over what `_save` wrote."""
        for name, value in self._made_for.items():
            if progress["made_for"][name] != value:
                raise InputError(
                    f"the state was made with {name} {progress['made_for'][name]!r}, not "
                    f"{value!r}; use the same value, or another `state`"
                )
        for name, source in self._sources.items():
            saved = progress[name]
            source.position, source.newest = tuple(saved["position"]), saved["newest"]
            source.outbox = saved["damaged"]
        self.counts = JoinCounts(**progress["counts"])
        self.watermark, self._sent = progress["watermark"], progress["sent"]

    def refuse_all_damaged(self) -> None:
        """Refuse a log of which nothing could be joined: it is another one, or they are swapped.

        Raises:
            InputError: all of its messages are damaged, and this process has read some.
        """
        counts = self.counts
        read = {IMPRESSIONS: counts.impressions, ACTIONS: counts.clicks}
        damaged = {IMPRESSIONS: counts.damaged_impressions, ACTIONS: counts.damaged_clicks}
        for name, source in self._sources.items():
            if source.damaged.newest and damaged[name] == read[name]:
                raise InputError(
                    f"none of the {read[name]:,} messages of `{name}` could be joined; the newest: "
                    f"{source.damaged.newest}; check the logs and the features file"
                )

    @property
    def positions(self) -> dict[str, Position]:
        """How far each of the logs was read."""
        return {name: source.position for name, source in self._sources.items()}

    @property
    def newest(self) -> dict[str, int | None]:
        """Time of the newest event of each log; None before the first."""
        return {name: source.newest for name, source in self._sources.items()}

    def sizes(self) -> tuple[int, int]:
        """Numbers of impressions and of waiting clicks in the state."""
        return self._state.sizes()

    def take(
        self,
        name: str,
        messages: Sequence[Message],
        waiting_for: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """Join messages that follow in one of the logs, and append the examples.

        Args:
            name: `IMPRESSIONS` or `ACTIONS`.
            messages: read from its position.
            waiting_for: asked after these messages: as for `advance`, which they may make possible.
                So the examples of clicks and of ends of windows come in the order of their times.

        Raises:
            LogUnavailable: not all examples were appended; call `deliver` before anything else.
        """
        with self._transaction():
            self._add(name, messages)
            self._sources[name].position = messages[-1].after
            watermark = None if waiting_for is None else self._time_of(waiting_for())
            if self._is_later(watermark):
                self._advance(watermark)

    def skip(self, name: str, position: Position) -> None:
        """Go on at a later place, which the next transaction keeps; no message is before it.

        Args:
            name: `IMPRESSIONS` or `ACTIONS`.
            position: from `past_gaps` of its log.
        """
        self._sources[name].position = position

    def advance(self, waiting_for: Sequence[str]) -> None:
        """End the windows that both logs have passed.

        Args:
            waiting_for: the logs whose next messages may be old; the others are silent.

        Raises:
            LogUnavailable: not all examples were appended; call `deliver` before anything else.
        """
        watermark = self._time_of(waiting_for)
        while self._is_later(watermark):
            with self._transaction():
                self._advance(watermark)

    def finish(self) -> None:
        """End all windows: no further messages come.

        Raises:
            LogUnavailable: not all examples were appended; call `deliver` before anything else.
        """
        is_done = False
        while not is_done:
            with self._transaction():
                cut = self._state.time_of(CLOSED_AT_ONCE, 0)
                is_done = cut is None
                before = LATEST + 1 if cut is None else cut + 1
                self._end(self._state.end_windows(self._ended_until, before))
                self._state.forget_impressions(before)
                if is_done:
                    self._forget_clicks(before)

    def deliver(self) -> None:
        """Write what the last transaction has left to write: examples and damaged messages.

        Raises:
            LogUnavailable: not all examples were appended; call this again.
            InputError: the log has lost examples that this join wrote.
        """
        for source in self._sources.values():
            source.deliver()
        done = 0
        if not self._is_sure:
            end = self._to.end()[0]
            if end < self._sent:
                raise InputError(
                    f"{self._to.name}: ends at message {end:,}, but this join wrote up to "
                    f"{self._sent:,}; give the log that belongs to the state, or another `state`"
                )
            done = min(end - self._sent, len(self._outbox))
            self._sent, self._is_sure = end - done, True
        if done < len(self._outbox):
            try:
                self._to.append(self._outbox[done:])
            except LogUnavailable:
                self._is_sure = False
                raise
        self._sent += len(self._outbox)
        self._outbox = []

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Keep what the block changes, and append what it makes."""
        with self._state.transaction():
            yield
            self._save()
        self.deliver()

    def _save(self) -> None:
        """Write the progress within the transaction.

        Examples go in the order of the times they are due. In that of the logs, which are read in
        turns, often thousands of messages at a time, a batch of a training would hold one label.
        """
        self._outbox = [example for _, example in sorted(self._due, key=lambda each: each[0])]
        self._due = []
        progress = {
            name: {"position": each.position, "newest": each.newest, "damaged": each.outbox}
            for name, each in self._sources.items()
        }
        progress |= {"made_for": self._made_for, "watermark": self.watermark}
        progress |= {"counts": self.counts.as_dict(), "sent": self._sent}
        self._state.save_progress(progress, self._outbox)

    def _time_of(self, waiting_for: Sequence[str]) -> int | None:
        """Event time that both logs have come to; None if one has not begun."""
        times = [self._sources[name].newest for name in waiting_for]
        known = [newest for newest in self.newest.values() if newest is not None]
        times = times or [max(known, default=None)]
        return None if None in times else min(times) - self._settings.lateness

    def _is_later(self, watermark: int | None) -> bool:
        return watermark is not None and (self.watermark is None or watermark > self.watermark)

    @property
    def _ended_until(self) -> int:
        """Time of impressions before which all windows are over; times begin at 0."""
        return 0 if self.watermark is None else self.watermark - self._settings.window

    def _add(self, name: str, messages: Sequence[Message]) -> None:
        """Join messages of one of the logs."""
        source, counts = self._sources[name], self.counts
        keys, times, values = self._read(source, messages)
        if name == IMPRESSIONS:
            counts.impressions += len(messages)
            counts.damaged_impressions += len(source.outbox)
            added, last = self._state.add_impressions([*zip(keys, times, values)])
            counts.repeated_impressions += len(times) - added
            self._click(over=0)
            if times and min(times) < self._ended_until:
                self._end(self._state.end_windows_after(last, self._ended_until))
        else:
            counts.clicks += len(messages)
            counts.damaged_clicks += len(source.outbox)
            self._state.add_clicks(zip(keys, times))
            self._click(over=self._ended_until)

    def _read(
        self, source: _Source, messages: Sequence[Message]
    ) -> tuple[list[str], list[int], list[bytes]]:
        """Return the keys, event times and bytes of messages; the damaged ones are set aside."""
        features, damage, keys = self._features, Damage(), []
        rows = damage.rows = decode_messages([message.value for message in messages], damage)
        for i, row in enumerate(rows):
            key = ""
            try:
                key = _key_of(row, features, source.required)
            except ValueError as error:
                damage.reasons.setdefault(i, str(error))
            keys.append(key)
        for i in damage.reasons:
            rows[i] = {features.time: None}
        times = encode_times(read_column(rows, features.time, features, damage), features, damage)
        refuse_ahead(times, self._clock(), features, damage)
        source.set_aside(messages, damage.reasons)
        good = np.flatnonzero(damage.good(len(messages))).tolist()
        times, newest = times[good], source.newest
        if times.size:
            source.newest = max(int(times.max()), newest or 0)
        joined = event_times(times, newest, self._settings.lateness).tolist()
        return [keys[i] for i in good], joined, [messages[i].value for i in good]

    def _click(self, over: int) -> None:
        """Apply the clicks that have arrived; the windows of impressions before `over` are over."""
        changed = []
        for row, shown, status, value, clicks, early, first, due in self._state.clicked(over):
            self.counts.early_clicks += early
            self.counts.repeated_clicks += clicks - (status == NO_CLICK)
            if status == CLICKED:
                continue
            if first is not None:
                self._make(value, 1, due, late=shown < over)
                changed.append((CLICKED, None, row))
            elif status == NO_CLICK:
                changed.append((LATE_CLICK, value, row))
        self._state.set_status(changed)

    def _advance(self, watermark: int) -> None:
        """Come to an event time, or part of the way if too many windows would end at once."""
        window, since, now = self._settings.window, self._ended_until, watermark
        cut = self._state.time_of(CLOSED_AT_ONCE, since)
        if cut is not None:
            now = min(watermark, max(cut, since + 1) + window)
        self._end(self._state.end_windows(since, now - window))
        self._state.forget_impressions(now - self._settings.kept)
        self._forget_clicks(now - self._settings.lateness)
        self.watermark = now

    def _end(self, impressions: Sequence[Row]) -> None:
        """Make the examples of impressions without a click in the window, which is over."""
        for key, shown, status, value in impressions:
            due = shown + self._settings.window
            if self._settings.keeps_negative(key):
                self._make(value, 0, due)
            else:
                self.counts.dropped_negatives += 1
            if status == LATE_CLICK:
                self._make(value, 1, due, late=True)

    def _forget_clicks(self, before: int) -> None:
        self.counts.clicks_without_impression += self._state.forget_clicks(before)

    def _make(self, impression: bytes, label: int, due: int, *, late: bool = False) -> None:
        """Make an example: the bytes of the impression with further columns at their end.

        An impression that has such a column already, or that is no UTF-8, is written anew.
        """
        self.counts.negatives += not label
        self.counts.positives += label and not late
        self.counts.late_positives += late
        end = self._ends[label, late]
        start, _, rest = impression.rpartition(b"}")
        if start.lstrip()[:1] != b"{" or rest.strip() or any(n in start for n in self._names):
            row = json.loads(impression) | json.loads(b"{" + end[1:])
            start = json.dumps(row, separators=(",", ":")).encode()
            end = b""
        self._due.append((due, start.rstrip() + end))


def _key_of(row: Mapping[str, Json], features: LogFeatures, required: frozenset[str]) -> str:
    """Return the key of a message.

    Raises:
        ValueError: it has none, or lacks another column.
    """
    if not required <= row.keys():
        missing = min(required - row.keys())
        raise ValueError(f"no {missing!r}; {features.column(missing).remedy}")
    key = row[features.key]
    if type(key) is not str or not key.isascii():
        key = text_of_value(key, features.key, is_id=True)
    if not key:
        raise ValueError(f"{features.key} is missing; an event needs its key")
    return key


def event_times(
    times: npt.NDArray[np.int64], newest: int | None, lateness: int
) -> npt.NDArray[np.int64]:
    """Return the times with which messages take part in the join.

    Args:
        times: of messages in the order of their log, [n].
        newest: greatest time before them.
        lateness: by how much they may be behind a greater time before them.

    >>> event_times(np.array([100, 95, 80]), newest=None, lateness=10).tolist()
    [100, 95, 90]
    """
    before = np.concatenate(([-lateness if newest is None else newest], times[:-1]))
    return np.maximum(times, np.maximum.accumulate(before) - lateness)
