"""Read two logs and join them until the end, or until a signal."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from cowclip_merlin.online.events.values import format_time
from cowclip_merlin.online.joining.joiner import ACTIONS, IMPRESSIONS, Joiner
from cowclip_merlin.online.joining.state import JoinCounts
from cowclip_merlin.online.logs.message_log import (
    LogUnavailable,
    Message,
    MessageLog,
    Position,
    Retrying,
    lag,
)
from cowclip_merlin.online.monitoring import Metric, Numbers
from cowclip_merlin.online.timers import Timer
from cowclip_merlin.system.signals import GracefulStop

READ_AT_ONCE = 8192
STATUS_EVERY = 10.0
"""Seconds between two lines about the progress."""

TRIM_EVERY = 10.0
"""Seconds between two removals of messages that were joined."""

_COUNTS = tuple(JoinCounts().as_dict())

METRICS = (
    *(Metric(n, f"{n.replace('_', ' ')}, since the state was made", "counter") for n in _COUNTS),
    Metric("messages_per_second", "Messages read per second since the line before"),
    Metric("lag_impressions", "Messages of the log of impressions that were not read yet"),
    Metric("lag_actions", "Messages of the log of clicks that were not read yet"),
    Metric("open_impressions", "Impressions whose window is not over"),
    Metric("open_clicks", "Clicks that wait for their impression"),
    Metric("event_age_seconds", "Age of the time up to which windows are over", "age"),
    Metric("status_age_seconds", "Age of these numbers", "age"),
)
"""What Prometheus reads, as `cowclip_join_...`; the numbers are those of the newest line."""

_WAIT = 0.02  # seconds for a first message, when there was none before


@dataclass
class _Reader:
    """One of the logs, and whether it is silent."""

    log: MessageLog
    last: float  # when a message came last
    end: Position | None  # where to stop
    is_empty: bool = False  # whether the last read found nothing


class JoinLoop:
    """Feeds a joiner from its two logs.

    The log that is behind in event time is read first, so that few messages wait.

    Args:
        joiner: to feed.
        impressions: the log of impressions.
        actions: the log of clicks.
        idle: seconds after which a silent log is not waited for.
        until_end: stop at the ends that the logs have now, and end all windows.
        trim: remove messages from the logs some seconds after they were joined.
        log: takes a line about the progress from time to time.
        stop: asked after each batch.
    """

    def __init__(
        self,
        joiner: Joiner,
        impressions: MessageLog,
        actions: MessageLog,
        *,
        idle: float,
        until_end: bool,
        trim: bool = False,
        log: logging.Logger,
        stop: GracefulStop,
    ) -> None:
        self._joiner, self._idle, self._until_end = joiner, idle, until_end
        self._log, self._stop = log, stop
        self._readers = {
            name: _Reader(each, time.monotonic(), each.end() if until_end else None)
            for name, each in ((IMPRESSIONS, impressions), (ACTIONS, actions))
        }
        self._status = _Status(self, log)
        self._retrying = Retrying(
            lambda error: log.warning("%s; trying again", error),
            stopped=lambda: stop.signal_number is not None,
        )
        self._trim, self._trim_timer = trim, Timer(TRIM_EVERY)

    def run(self) -> None:
        """Join until the ends of the logs, or until a signal.

        Raises:
            InputError: a log lost messages that were not read yet.
        """
        while not self._stop.signal_number:
            if self._until_end and not any(map(self._has_more, self._readers)):
                self._retry(self._joiner.finish)
                return
            self._retry(self._step)
            self._status.print_if_due()
            if self._trim and self._trim_timer.due():
                self._retry(self._trim_logs)
                self._trim_timer.reset()

    def status(self) -> Numbers:
        """Return the numbers of the newest line, for Prometheus."""
        return self._status.newest

    @property
    def joiner(self) -> Joiner:
        """The joiner."""
        return self._joiner

    def lags(self) -> dict[str, int]:
        """Messages of each log that were not read yet."""
        positions = self._joiner.positions
        return {k: lag(positions[k], r.log.end()) for k, r in self._readers.items()}

    def _step(self) -> None:
        """Join the next messages, if there are any."""
        for name in sorted(filter(self._has_more, self._readers), key=self._event_time):
            if messages := self._read(name):
                self._joiner.take(name, messages, self._waited_for)
                break
        self._joiner.advance(self._waited_for())

    def _waited_for(self) -> list[str]:
        """The logs whose next messages may be old."""
        return [name for name in self._readers if self._is_waited_for(name)]

    def _trim_logs(self) -> None:
        """Remove what was read; the state has all of it that is still needed."""
        for name, reader in self._readers.items():
            reader.log.trim(self._joiner.positions[name])

    def _retry(self, step: Callable[[], None]) -> None:
        """Make a step; while a log is unavailable, wait and try again."""

        def deliver_and_step() -> None:
            self._joiner.deliver()  # what a step before could not append
            step()

        self._retrying(deliver_and_step)

    def _read(self, name: str) -> list[Message]:
        reader, position = self._readers[name], self._joiner.positions[name]
        most = READ_AT_ONCE
        if reader.end is not None and reader.end[0] > position[0]:
            most = min(most, reader.end[0] - position[0])
        messages = reader.log.read(position, most, _WAIT if reader.is_empty else 0.0)
        reader.is_empty = not messages
        if messages:
            reader.last = time.monotonic()
        else:
            self._joiner.skip(name, reader.log.past_gaps(position))
        return self._up_to_end(name, messages)

    def _up_to_end(self, name: str, messages: list[Message]) -> list[Message]:
        """The messages up to the end of a reader; gaps count in positions, but not in reads.

        In several partitions, later messages of one may come before the last ones of another.
        """
        end = self._readers[name].end
        if end is None or not messages or messages[0].partition is not None:
            return messages
        within = [message for message in messages if message.after[0] <= end[0]]
        if not within:  # the rest up to the end is a gap
            self._readers[name].end = self._joiner.positions[name]
        return within

    def _has_more(self, name: str) -> bool:
        """Whether there is something to read, now or later."""
        reader = self._readers[name]
        return reader.end is None or not reader.log.has_reached(
            self._joiner.positions[name], reader.end
        )

    def _event_time(self, name: str) -> float:
        newest = self._joiner.newest[name]
        return -1 if newest is None else newest

    def _is_waited_for(self, name: str) -> bool:
        """Whether the messages that this log may still bring hold back the end of windows."""
        reader = self._readers[name]
        if reader.end is not None:
            return self._has_more(name)
        return not reader.is_empty or time.monotonic() - reader.last < self._idle


class _Status:
    """Tells the progress from time to time."""

    def __init__(self, loop: JoinLoop, log: logging.Logger) -> None:
        self._loop, self._log, self._printed = loop, log, time.monotonic()
        self._events = self._read()
        self.newest: Numbers = {}

    def print_if_due(self) -> None:
        """Print a line if the last one is old."""
        if time.monotonic() - self._printed >= STATUS_EVERY:
            self.print()

    def print(self) -> None:
        """Print a line, and keep its numbers."""
        now = time.monotonic()
        rate = (self._read() - self._events) / max(now - self._printed, 1e-9)
        self._printed, self._events = now, self._read()
        joiner, lags = self._loop.joiner, self._lags()
        open_messages = joiner.sizes()
        self.newest = {
            **joiner.counts.as_dict(),
            "messages_per_second": round(rate, 1),
            **{f"lag_{name}": lags.get(name) for name in (IMPRESSIONS, ACTIONS)},
            **dict(zip(("open_impressions", "open_clicks"), open_messages, strict=True)),
            "event_age_seconds": joiner.watermark,
            "status_age_seconds": time.time(),
        }
        self._log.info(
            "%s; %.0f messages/s; not read yet: %s; open: %s; event time %s",
            joiner.counts.summary(),
            rate,
            _numbers(lags),
            "{:,} impressions, {:,} clicks".format(*open_messages),
            "none" if joiner.watermark is None else format_time(joiner.watermark),
            extra={"values": self.newest},
        )

    def _lags(self) -> dict[str, int]:
        try:
            return self._loop.lags()
        except LogUnavailable:
            return {}

    def _read(self) -> int:
        counts = self._loop.joiner.counts
        return counts.impressions + counts.clicks


def _numbers(named: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in named.items()) or "unknown"
