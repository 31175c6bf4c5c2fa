"""Join the impressions and the clicks of two logs into a log of examples."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import LogFeatures, load_features
from cowclip_merlin.online.events.values import format_time
from cowclip_merlin.online.joining.joiner import ACTIONS, IMPRESSIONS, Joiner
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.joining.state import JoinCounts, JoinState
from cowclip_merlin.online.logs.message_log import (
    LogUnavailable,
    Message,
    MessageLog,
    Position,
    lag,
)
from cowclip_merlin.online.logs.open_log import open_log, refuse_one_log
from cowclip_merlin.online.report import MonitoringSettings, Number, Values
from cowclip_merlin.online.service import Service
from cowclip_merlin.system.signals import GracefulStop, Stopped
from cowclip_merlin.targets import refuse_several
from cowclip_merlin.training.run_logs import run_logger

READ_AT_ONCE = 8192
_COUNTS = tuple(JoinCounts().as_dict())

NUMBERS = (
    *(Number(x, f"{x.replace('_', ' ')}, since the state was made", "counter") for x in _COUNTS),
    Number("messages_per_second", "Messages read per second since the line before"),
    Number("lag_impressions", "Messages of the log of impressions that were not read yet"),
    Number("lag_actions", "Messages of the log of clicks that were not read yet"),
    Number("open_impressions", "Impressions whose window is not over"),
    Number("open_clicks", "Clicks that wait for their impression"),
    Number(
        "event_time", "Age of the time up to which windows are over", "age", "event_age_seconds"
    ),
    Number("time", "Age of these numbers", "age", "status_age_seconds"),
)
"""What Prometheus reads, as `cowclip_join_...`; the values are those of the newest line."""

AGAIN = (
    "%s has %s examples, but the state %s is new: those of the same impressions are written again; "
    "stop, and give the state that they were made with, or a new log"
)

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
        self._readers = {
            name: _Reader(each, time.monotonic(), each.end() if until_end else None)
            for name, each in ((IMPRESSIONS, impressions), (ACTIONS, actions))
        }
        self._trim, self._service = trim, Service(log, "trying again", stop)
        self._service.begin(self._read_count())

    def run(self) -> None:
        """Join until the ends of the logs, or until a signal.

        Raises:
            InputError: a log lost messages that were not read yet.
        """
        self._service.run(self._go_on, self._tell_and_trim)

    def status(self) -> Values:
        """Return the numbers of the newest line, for Prometheus."""
        return self._service.newest

    def _go_on(self) -> bool:
        """Join the next messages; False at the ends of the logs."""
        if self._until_end and not any(map(self._has_more, self._readers)):
            self._retry(self._joiner.finish)
            return False
        self._retry(self._step)
        return True

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

    def _retry(self, step: Callable[[], None]) -> None:
        """Make a step; while a log is unavailable, wait and try again."""

        def deliver_and_step() -> None:
            self._joiner.deliver()  # what a step before could not append
            step()

        self._service.retry(deliver_and_step)

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

    def _tell_and_trim(self) -> None:
        self._tell()
        if self._trim:
            self._retry(self._trim_logs)

    def _trim_logs(self) -> None:
        """Remove what was read; the state has all of it that is still needed."""
        for name, reader in self._readers.items():
            reader.log.trim(self._joiner.positions[name])

    def _tell(self) -> None:
        """Write a line."""
        joiner, lags = self._joiner, self._lags()
        rate, waiting = self._service.rate(self._read_count()), joiner.sizes()
        values = {
            **joiner.counts.as_dict(),
            "messages_per_second": round(rate, 1),
            **{f"lag_{name}": lags.get(name) for name in (IMPRESSIONS, ACTIONS)},
            **dict(zip(("open_impressions", "open_clicks"), waiting, strict=True)),
            "event_time": joiner.watermark,
            "time": round(time.time(), 1),
        }
        self._service.write_line(
            values,
            "%s; %.0f messages/s; not read yet: %s; open: %s; event time %s",
            joiner.counts.summary(),
            rate,
            ", ".join(f"{n:,} {name}" for name, n in lags.items()) or "unknown",
            "{:,} impressions, {:,} clicks".format(*waiting),
            "none" if joiner.watermark is None else format_time(joiner.watermark),
        )

    def _lags(self) -> dict[str, int]:
        """Messages of each log that were not read yet; none while a log is away."""
        positions = self._joiner.positions
        try:
            return {k: lag(positions[k], r.log.end()) for k, r in self._readers.items()}
        except LogUnavailable:
            return {}

    def _read_count(self) -> int:
        counts = self._joiner.counts
        return counts.impressions + counts.clicks


def join_logs(
    impressions: str,
    actions: str,
    to: str,
    features: str | FilePath | LogFeatures,
    settings: JoinSettings,
    *,
    state: str | Path,
    until_end: bool = False,
    trim: bool = False,
    monitoring: MonitoringSettings | None = None,
) -> JoinCounts:
    """Join two logs until a signal, or until their ends. The same call goes on after a crash.

    Args:
        impressions: log of impressions; a folder, or the address of a Redis Stream or of a Kafka
            topic.
        actions: log of clicks, like `impressions`.
        to: log of examples to write, like `impressions`.
        features: features file, or the columns read from it; with a key.
        settings: of the join.
        state: file of the state. Beside it are `STATE.log` and the files of damaged messages.
        until_end: stop at the ends that the logs have now, and end all windows.
        trim: remove messages from both logs when they were joined.
        monitoring: how others watch the join; None for the defaults.

    Returns:
        What was read and written since the state was made.

    Raises:
        InputError: an input is wrong, a log lost messages that were not read yet, or at its end all
            messages of one are damaged.
        Stopped: after SIGINT or SIGTERM.
    """
    columns = features if isinstance(features, LogFeatures) else load_features(features)
    if columns.key is None:
        raise InputError(f"{features}: no `key`; name the column that identifies a request")
    remedy = "write examples with all labels to the topic that the trainer reads"
    refuse_several("cowclip online join", columns.targets, remedy)
    refuse_one_log(impressions=impressions, actions=actions, to=to)
    state, stop, monitoring = Path(state), GracefulStop(), monitoring or MonitoringSettings()
    damaged = tuple(Path(f"{state}.damaged-{kind}.jsonl") for kind in ("impressions", "actions"))
    with ExitStack() as stack:
        endpoint = stack.enter_context(monitoring.endpoint("cowclip_join", NUMBERS))
        logs = [
            stack.enter_context(closing(open_log(url, several=True)))
            for url in (impressions, actions)
        ]
        logs.append(stack.enter_context(closing(open_log(to, create=True))))
        store = stack.enter_context(closing(JoinState(state, settings)))
        lines = run_logger(Path(f"{state}.log"), log_format=monitoring.log_format)
        log = stack.enter_context(lines)
        stack.enter_context(stop.catch_signals())
        joiner = Joiner(*logs, columns, settings, store, damaged)
        log.info("reads %s and %s, writes %s", *(each.name for each in logs))
        if joiner.before:
            log.warning(AGAIN, logs[2].name, f"{joiner.before:,}", state)
        loop = JoinLoop(
            joiner,
            *logs[:2],
            idle=settings.idle,
            until_end=until_end,
            trim=trim,
            log=log,
            stop=stop,
        )
        endpoint.tell(loop.status, log.info)
        loop.run()
        log.info("%s", joiner.counts.summary())
        if until_end and not stop.signal_number:
            joiner.refuse_all_damaged()
    if stop.signal_number:
        raise Stopped(stop.signal_number)
    return joiner.counts
