"""Join batches of messages, and write each example once, even if the process is killed.

One transaction keeps the changes of the state, the positions in both logs, and an *outbox*: the
examples of this batch and the end of the examples log before them. The examples are appended after
it. A new process compares that end with the log, and appends what is missing. So each example is
written once if nobody else writes to that log, and the state file survives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.joining.matching import ExampleWriter, JoinCounts, Matching
from cowclip_merlin.online.joining.messages import MessageParser
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.joining.store import JoinStore
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.logs.message_log import LogUnavailable, Message, MessageLog, Position
from cowclip_merlin.online.logs.open_log import log_identity
from cowclip_merlin.types import JsonObject

if TYPE_CHECKING:
    from cowclip_merlin.online.events.features import LogFeatures

IMPRESSIONS, ACTIONS = "impressions", "actions"
_FIXED = ("window", "late", "lateness")  # settings that the state depends on


@dataclass
class _Source:
    """A log that is read, how its messages are parsed, and how far it was read."""

    log: MessageLog
    parser: MessageParser
    damaged: DamagedMessages
    position: Position
    newest: int | None = None  # time of its newest event


class Joiner:
    """The join of two logs. Create it again with the same store to go on after a crash.

    Args:
        impressions: log of impressions.
        actions: log of clicks.
        to: log of examples, which nobody else writes to.
        features: the columns; `key` is needed.
        settings: of the join.
        store: the state.
        damaged: two files that take the damaged messages, of impressions and of clicks.
        clock: seconds since 1970.

    Raises:
        InputError: the features name no key, or the state is of other logs or settings.

    Attributes:
        counts: what was read and written so far.
        positions: how far each of the logs was read.
    """

    def __init__(
        self,
        impressions: MessageLog,
        actions: MessageLog,
        to: MessageLog,
        features: LogFeatures,
        settings: JoinSettings,
        store: JoinStore,
        damaged: tuple[Path, Path],
        clock: Callable[[], float] = time.time,
    ) -> None:
        if features.key is None:
            raise InputError("the features file names no key; add `key:` with the request's column")
        self._to, self._settings, self._store = to, settings, store
        self._clock = clock
        needed = [column.name for column in features.columns_of_model if not column.optional]
        self._sources = {
            IMPRESSIONS: _source(impressions, MessageParser(features, needed), damaged[0]),
            ACTIONS: _source(actions, MessageParser(features), damaged[1]),
        }
        logs = {"to": to, "impressions": impressions, "actions": actions}
        self._made_for = {k: log_identity(log.name) for k, log in logs.items()}
        self._made_for |= {"key": features.key} | {k: getattr(settings, k) for k in _FIXED}
        progress, outbox = store.progress()
        self._outbox = outbox.split(b"\n") if outbox else []
        self._is_sure = False  # whether `_sent` is the end of the examples log
        self.counts, watermark = JoinCounts(), None
        self._sent = to.end()[0] if progress is None else progress["sent"]
        if progress is not None:
            watermark = self._restore(progress)
        writer = ExampleWriter(features.label, settings.negatives)
        self._matching = Matching(settings, store, writer, self.counts, watermark)
        if progress is None:
            with store.transaction():
                self._save()
        self.deliver()

    def _restore(self, progress: JsonObject) -> int | None:
        """Take over what `_save` wrote; return the watermark."""
        for name, value in self._made_for.items():
            if progress["made_for"][name] != value:
                raise InputError(
                    f"the state was made with {name} {progress['made_for'][name]!r}, not "
                    f"{value!r}; use the same value, or another `state`"
                )
        for name, source in self._sources.items():
            source.position = tuple(progress[name]["position"])
            source.newest = progress[name]["newest"]
        self.counts = JoinCounts(**progress["counts"])
        return progress["watermark"]

    @property
    def positions(self) -> dict[str, Position]:
        """How far each of the logs was read."""
        return {name: source.position for name, source in self._sources.items()}

    @property
    def newest(self) -> dict[str, int | None]:
        """Time of the newest event of each log; None before the first."""
        return {name: source.newest for name, source in self._sources.items()}

    @property
    def watermark(self) -> int | None:
        """Event time that both logs have come to; None before the first."""
        return self._matching.watermark

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
        source = self._sources[name]
        with self._store.transaction():
            damaged = self._add(name, source, messages)
            source.position = messages[-1].after
            watermark = None if waiting_for is None else self._time_of(waiting_for())
            if watermark is not None:
                self._matching.advance(watermark)
            self._save()
        source.damaged.add(messages, damaged)  # now: partitions have no one order until then
        self.deliver()

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
        known = self.watermark
        is_done = watermark is None or (known is not None and watermark <= known)
        while not is_done:
            is_done = self._in_transaction(lambda: self._matching.advance(watermark))

    def _time_of(self, waiting_for: Sequence[str]) -> int | None:
        """Event time that both logs have come to; None if one has not begun."""
        times = [self._sources[name].newest for name in waiting_for]
        known = [time for time in self.newest.values() if time is not None]
        times = times or [max(known, default=None)]
        return None if None in times else min(times) - self._settings.lateness

    def finish(self) -> None:
        """End all windows: no further messages come.

        Raises:
            LogUnavailable: not all examples were appended; call `deliver` before anything else.
        """
        while not self._in_transaction(self._matching.finish):
            pass

    def deliver(self) -> None:
        """Append those examples of the last transaction that are not in the log yet.

        Raises:
            LogUnavailable: not all examples were appended; call this again.
            InputError: the log has lost examples that this join wrote.
        """
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

    def sizes(self) -> tuple[int, int]:
        """Numbers of impressions and of waiting clicks in the state."""
        return self._store.sizes()

    def _in_transaction(self, change: Callable[[], bool]) -> bool:
        with self._store.transaction():
            is_done = change()
            self._save()
        self.deliver()
        return is_done

    def _add(self, name: str, source: _Source, messages: Sequence[Message]) -> Mapping[int, str]:
        """Join messages; return what is wrong with damaged ones."""
        parsed = source.parser.parse([m.value for m in messages], self._clock())
        times = event_times(parsed.times, source.newest, self._settings.lateness).tolist()
        if times:
            source.newest = max(int(parsed.times.max()), source.newest or 0)
        if name == IMPRESSIONS:
            self.counts.impressions += len(messages)
            self.counts.damaged_impressions += len(parsed.damaged)
            self._matching.add_impressions(parsed.keys, times, parsed.values)
        else:
            self.counts.clicks += len(messages)
            self.counts.damaged_clicks += len(parsed.damaged)
            self._matching.add_clicks(parsed.keys, times)
        return parsed.damaged

    def _save(self) -> None:
        """Write the progress within the transaction."""
        self._outbox = self._matching.take_examples()
        sources = {
            name: {"position": source.position, "newest": source.newest}
            for name, source in self._sources.items()
        }
        self._store.save_progress(
            sources
            | {
                "made_for": self._made_for,
                "watermark": self._matching.watermark,
                "counts": asdict(self.counts),
                "sent": self._sent,
            },
            b"\n".join(self._outbox),
        )


def _source(log: MessageLog, parser: MessageParser, damaged: Path) -> _Source:
    return _Source(log, parser, DamagedMessages(damaged), log.start())


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
