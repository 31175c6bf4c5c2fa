"""Play events as messages, at a pace."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.event_log import RawEvents
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import MessageLog, Retrying
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.targets import refuse_several
from cowclip_merlin.types import Array, Floats, Json


class EventMessages:
    """Makes messages of events.

    Args:
        features: names of the columns.
        new_times: write given times instead of those of the log.

    Raises:
        InputError: the time that is to be replaced is an input of the model, too.
    """

    def __init__(self, features: LogFeatures, *, new_times: bool = False) -> None:
        self._features, self._new_times = features, new_times
        if new_times and features.time in features.inputs:
            raise InputError(
                f"times are replaced by the clock's, but {features.time!r} is also an input of the "
                "model; keep the times of the log"
            )
        # One encoder for all messages; json.dumps would make one for each.
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

    def examples(self, events: RawEvents, times: Floats) -> list[bytes]:
        """Messages with inputs, time, key and labels.

        Args:
            events: the events.
            times: of them, seconds since 1970, [n]; used with `new_times`.
        """
        labels = dict(zip(self._features.labels, _label_columns(events.labels)))
        return self._messages(events.columns | labels | self._times(times))

    def impressions(self, events: RawEvents, times: Floats) -> list[bytes]:
        """Messages without the label. Arguments as for `examples`."""
        return self._messages(events.columns | self._times(times))

    def actions(self, clicks: Iterable[tuple[Json, float]]) -> list[bytes]:
        """Messages of clicks.

        Args:
            clicks: key of the impression, and time of the click in seconds since 1970.
        """
        keys, times = zip(*clicks)
        columns = {self._features.key: keys, self._features.time: self._values(times)}
        return self._messages(columns)

    def _times(self, times: Floats) -> dict[str, list[float | str]]:
        return {self._features.time: self._values(times)} if self._new_times else {}

    def _values(self, times: Sequence[float] | Floats) -> list[float | str]:
        """Times as the features file says that they are written."""
        if self._features.time_format is None:
            return np.round(times, 3).tolist()
        dates = [datetime.fromtimestamp(float(time), timezone.utc) for time in times]
        return [f"{date:{self._features.time_format}}" for date in dates]

    def _messages(self, columns: Mapping[str, Sequence[Json]]) -> list[bytes]:
        names = list(columns)
        rows = zip(*columns.values())
        return [self._encode(dict(zip(names, row))).encode() for row in rows]


def _label_columns(labels: Array) -> list[list[float | None]]:
    """Return the JSON values of each label, given as [n] or [n, T]."""
    if labels.ndim == 1:
        return [labels.tolist()]
    return [[None if np.isnan(x) else x for x in column] for column in labels.T.tolist()]


class Clock(Protocol):
    """A clock that one can wait with."""

    def now(self) -> float:
        """Return the seconds since 1970."""

    def wait(self, seconds: float) -> None:
        """Wait so many seconds."""


class WallClock:
    """The time of this machine, which never goes back."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the seconds since 1970."""
        return time.monotonic() + self._offset

    def wait(self, seconds: float) -> None:
        """Wait so many seconds."""
        time.sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class Pace(Settings):
    """How fast a stream is played; without both, as fast as possible.

    Raises:
        InputError: a number is negative or not finite, or both are given.
    """

    rate: float = option(0.0, "events per second; 0: as fast as possible", metavar="N", at_least=0)
    speed: float = option(
        0.0, "seconds of event time per second; 0: use --rate", metavar="X", at_least=0
    )

    def __post_init__(self) -> None:
        """Check the numbers."""
        super().__post_init__()
        if self.rate and self.speed:
            raise InputError("`rate` and `speed` are both given; give one of them")

    def due(self, times: Floats, *, before: int, first: float, elapsed: float) -> Floats:
        """Return when to send some events, in seconds after the start of the stream, [n].

        Args:
            times: event times, [n].
            before: number of events of the stream before these.
            first: event time of the first event of the stream.
            elapsed: seconds since the start of the stream.

        >>> times = np.array([100.0, 160.0])
        >>> Pace(rate=4).due(times, before=2, first=40.0, elapsed=9.0).tolist()
        [0.5, 0.75]
        >>> Pace(speed=60).due(times, before=2, first=40.0, elapsed=9.0).tolist()
        [1.0, 2.0]
        >>> Pace().due(times, before=2, first=40.0, elapsed=9.0).tolist()
        [9.0, 9.0]
        """
        if self.rate:
            return (before + np.arange(len(times))) / self.rate
        if self.speed:
            return (times - first) / self.speed
        return np.full(len(times), elapsed)


MOST_AT_ONCE = 4096
"""Messages in one call of `append` at most."""
_TICK = 0.01  # seconds between two looks at what is due
_LONGEST_WAIT = 0.2  # seconds after which a stop is seen at the latest


def check_logs(examples: object, impressions: object, actions: object) -> None:
    """Refuse other logs than one of examples, or one of impressions and one of clicks.

    Raises:
        InputError: a log is missing, or one too many; None is no log.
    """
    pair = impressions is not None, actions is not None
    if pair != ((False, False) if examples is not None else (True, True)):
        raise InputError("give `to`, or both `impressions` and `actions`")


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Where events go: whole examples to one log, or impressions and clicks to two.

    Attributes:
        examples: log of inputs with labels.
        impressions: log of inputs without labels.
        actions: log of clicks.
    """

    examples: MessageLog | None = None
    impressions: MessageLog | None = None
    actions: MessageLog | None = None

    def check(self, features: LogFeatures) -> None:
        """Check that these logs fit each other and the features.

        Raises:
            InputError: a log is missing or one too many, or clicks have no key to refer to.
        """
        check_logs(self.examples, self.impressions, self.actions)
        if self.actions:
            remedy = "write whole examples, by `to`"
            refuse_several("a log of clicks", features.targets, remedy)
        if self.actions and not features.key:
            raise InputError(
                "`actions`: the features file names no key, to which a click could refer; add "
                "`key: COLUMN`, or use `to`"
            )


@dataclass(frozen=True, kw_only=True)
class Produced:
    """What was sent.

    Attributes:
        events: events or impressions.
        clicks: clicks among the events, or clicks that were sent.
        left: clicks that were not sent since the producer was stopped.
        seconds: from the start to the last event; clicks may follow.
    """

    events: int
    clicks: int
    left: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class EventTimes(Settings):
    """Times of the events and of their clicks.

    Raises:
        InputError: if a setting is out of range.
    """

    times: str = option(
        "log",
        "times of the events: those of the log, or those of the clock when they are due",
        choices=("log", "now"),
    )
    delay: float = option(
        2.0,
        "with --actions: mean seconds from an impression to its click, in event time",
        metavar="S",
        at_least=0,
    )
    seed: int = option(1234, "seed of the delays", at_least=0)


class Producer:
    """Plays one stream.

    Args:
        features: names of the columns.
        targets: where the events go.
        pace: when they are sent.
        times: of the events and of their clicks, whose delays are exponentially distributed.
        clock: for the pace and the new times.
        stopped: asked often; after True nothing more is sent.
        progress: told the number of events that were sent.
        trouble: told once when a log cannot be reached, and why.

    Raises:
        InputError: the targets do not fit.
    """

    def __init__(
        self,
        features: LogFeatures,
        targets: Targets,
        pace: Pace,
        *,
        times: EventTimes | None = None,
        clock: Clock | None = None,
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda events: None,
        trouble: Callable[[str], None] = lambda reason: None,
    ) -> None:
        targets.check(features)
        times = times or EventTimes()
        new_times = times.times == "now"
        self._features, self._targets, self._pace = features, targets, pace
        self._messages = EventMessages(features, new_times=new_times)
        self._new_times, self._delay = new_times, times.delay
        self._random = np.random.default_rng(times.seed)
        self._clock, self._stopped = clock or WallClock(), stopped
        self._progress = progress
        self._retrying = Retrying(
            lambda error: trouble(str(error)), stopped=stopped, sleep=self._clock.wait
        )
        self._clicks: list[tuple[float, int, Json]] = []  # heap of time, number and key
        self._events = self._positives = self._sent = self._left = 0

    def run(self, stream: Iterable[RawEvents]) -> Produced:
        """Send all events and their clicks; return when everything is sent, or after a stop."""
        self._start, self._first = self._clock.now(), None
        self._last = self._start
        for piece in stream:
            self._play(piece)
            if self._stopped():
                break
        else:
            self._send_rest()
        return Produced(
            events=self._events,
            clicks=self._sent if self._targets.actions else self._positives,
            left=self._left + len(self._clicks),
            seconds=self._last - self._start,
        )

    def _play(self, piece: RawEvents) -> None:
        """Send the events of one piece when they are due, and the clicks that are due before."""
        if self._first is None:
            self._first = float(piece.times[0])
        due = self._pace.due(
            piece.times, before=self._events, first=self._first, elapsed=self._elapsed()
        )
        sent = 0
        while sent < len(piece) and not self._stopped():
            ready = int(np.searchsorted(due, self._elapsed(), side="right"))
            ready = min(ready, sent + MOST_AT_ONCE)
            if ready > sent:
                self._send(piece[sent:ready], self._start + due[sent:ready])
                sent = ready
            if self._new_times:
                self._send_clicks(self._clock.now())
            if sent < len(piece):
                self._wait(float(due[sent]) - self._elapsed())

    def _send(self, events: RawEvents, due: Floats) -> None:
        times = due if self._new_times else events.times
        if self._targets.examples:
            target, messages = self._targets.examples, self._messages.examples(events, times)
        else:
            target, messages = self._targets.impressions, self._messages.impressions(events, times)
        if not self._append(target, messages):
            return
        if self._targets.actions:
            self._remember_clicks(events, times)
            if not self._new_times:
                self._send_clicks(float(times[-1]))
        self._events += len(events)
        self._positives += int(np.nansum(events.labels.reshape(len(events), -1)[:, 0]))
        self._last = self._clock.now()
        self._progress(len(events))

    def _remember_clicks(self, events: RawEvents, times: Floats) -> None:
        # One delay for each event, so that they do not depend on how the stream is cut.
        times = times + self._random.exponential(self._delay, len(events))
        keys = events.columns[self._features.key]
        for i in np.flatnonzero(events.labels).tolist():
            heapq.heappush(self._clicks, (float(times[i]), self._events + i, keys[i]))

    def _send_clicks(self, until: float) -> None:
        """Send the clicks up to a time."""
        ready: list[tuple[Json, float]] = []
        while self._clicks and self._clicks[0][0] <= until:
            time, _, key = heapq.heappop(self._clicks)
            ready.append((key, time))
        for first in range(0, len(ready), MOST_AT_ONCE):
            part = ready[first : first + MOST_AT_ONCE]
            if self._append(self._targets.actions, self._messages.actions(part)):
                self._sent += len(part)
            else:
                self._left += len(part)

    def _send_rest(self) -> None:
        """Send the clicks that are left after the last event."""
        while self._new_times and self._clicks and not self._stopped():
            self._wait(self._clicks[0][0] - self._clock.now())
            self._send_clicks(self._clock.now())
        if not self._stopped():
            self._send_clicks(float("inf"))

    def _append(self, log: MessageLog, messages: Sequence[bytes]) -> bool:
        """Append, again and again while the log cannot be reached; False after a stop."""
        return self._retrying(lambda: log.append(messages)) is not None

    def _elapsed(self) -> float:
        return self._clock.now() - self._start

    def _wait(self, seconds: float) -> None:
        """Wait for what is due next, but long enough to send some of it together."""
        if seconds > 0:
            self._clock.wait(min(max(seconds, _TICK), _LONGEST_WAIT))
