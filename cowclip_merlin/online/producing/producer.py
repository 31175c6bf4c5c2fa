"""Play events as messages, at a pace."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.event_log import RawEvents
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import MessageLog, Retrying
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.targets import refuse_several
from cowclip_merlin.types import Array, Floats, Json

MOST_AT_ONCE = 4096
"""Messages in one call of `append` at most."""

_TICK = 0.01  # seconds between two looks at what is due
_LONGEST_WAIT = 0.2  # seconds after which a stop is seen at the latest


@dataclass(frozen=True, kw_only=True)
class ProduceSettings(Settings):
    """How fast a stream is played, and the times of its events and clicks.

    Raises:
        InputError: a setting is out of range, or `rate` and `speed` are both given.
    """

    rate: float = option(0.0, "events per second; 0: as fast as possible", metavar="N", at_least=0)
    speed: float = option(
        0.0, "seconds of event time per second; 0: use --rate", metavar="X", at_least=0
    )
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

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.rate and self.speed:
            raise InputError("`rate` and `speed` are both given; give one of them")


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


def check_logs(examples: object, impressions: object, actions: object) -> None:
    """Refuse other logs than one of examples, or one of impressions and one of clicks.

    Raises:
        InputError: a log is missing, or one too many; None is no log.
    """
    pair = impressions is not None, actions is not None
    if pair != ((False, False) if examples is not None else (True, True)):
        raise InputError("give `to`, or both `impressions` and `actions`")


class Producer:
    """Plays one stream: whole examples to one log, or impressions and clicks to two.

    Args:
        features: names of the columns.
        settings: the pace, and the times. The delays of clicks are exponentially distributed.
        examples: log of inputs with labels.
        impressions: log of inputs without labels.
        actions: log of clicks.
        now: seconds since 1970, which never go back; None for the clock of this machine.
        wait: waits so many seconds.
        stopped: asked often; after True nothing more is sent.
        progress: told the number of events that were sent.
        trouble: told once when a log cannot be reached, and why.

    Raises:
        InputError: a log is missing or one too many, clicks have no key to refer to, or the time
            that is to be replaced is an input of the model, too.
    """

    def __init__(
        self,
        features: LogFeatures,
        settings: ProduceSettings,
        *,
        examples: MessageLog | None = None,
        impressions: MessageLog | None = None,
        actions: MessageLog | None = None,
        now: Callable[[], float] | None = None,
        wait: Callable[[float], object] = time.sleep,
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[int], object] = lambda events: None,
        trouble: Callable[[str], object] = lambda reason: None,
    ) -> None:
        check_logs(examples, impressions, actions)
        if actions is not None:
            refuse_several("a log of clicks", features.targets, "write whole examples, by `to`")
            if not features.key:
                raise InputError(
                    "`actions`: the features file names no key, to which a click could refer; add "
                    "`key: COLUMN`, or use `to`"
                )
        self._new_times = settings.times == "now"
        if self._new_times and features.time in features.inputs:
            raise InputError(
                f"times are replaced by the clock's, but {features.time!r} is also an input of the "
                "model; keep the times of the log"
            )
        self._features, self._settings = features, settings
        self._examples, self._impressions, self._actions = examples, impressions, actions
        since = time.time() - time.monotonic()
        self._now, self._wait = now or (lambda: since + time.monotonic()), wait
        self._stopped, self._progress = stopped, progress
        self._retrying = Retrying(lambda error: trouble(str(error)), stopped=stopped, sleep=wait)
        self._random = np.random.default_rng(settings.seed)
        # One encoder for all messages; json.dumps would make one for each.
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        self._clicks: list[tuple[float, int, Json]] = []  # heap of time, number and key
        self._events = self._positives = self._sent = self._left = 0
        self._first: float | None = None  # time of the first event

    def run(self, stream: Iterable[RawEvents]) -> Produced:
        """Send all events and their clicks; return when everything is sent, or after a stop."""
        self._start = self._last = self._now()
        for piece in stream:
            self._play(piece)
            if self._stopped():
                break
        else:
            self._send_rest()
        return Produced(
            events=self._events,
            clicks=self._positives if self._actions is None else self._sent,
            left=self._left + len(self._clicks),
            seconds=self._last - self._start,
        )

    def _play(self, piece: RawEvents) -> None:
        """Send the events of one piece when they are due, and the clicks that are due before."""
        due, sent = self._due(piece.times), 0
        while sent < len(piece) and not self._stopped():
            ready = int(np.searchsorted(due, self._now() - self._start, side="right"))
            ready = min(ready, sent + MOST_AT_ONCE)
            if ready > sent:
                self._send(piece[sent:ready], self._start + due[sent:ready])
                sent = ready
            if self._new_times:
                self._send_clicks(self._now())
            if sent < len(piece):
                self._pause(float(due[sent]) - (self._now() - self._start))

    def _due(self, times: Floats) -> Floats:
        """Return when to send the next events, in seconds after the start, [n]."""
        if self._first is None:
            self._first = float(times[0])
        if self._settings.rate:
            return (self._events + np.arange(len(times))) / self._settings.rate
        if self._settings.speed:
            return (times - self._first) / self._settings.speed
        return np.full(len(times), self._now() - self._start)

    def _send(self, events: RawEvents, due: Floats) -> None:
        times, name = (due if self._new_times else events.times), self._features.time
        columns = dict(events.columns)
        if self._examples is not None:
            columns |= zip(self._features.labels, _label_columns(events.labels))
        if self._new_times:
            columns[name] = self._written(times)
        log = self._impressions if self._examples is None else self._examples
        if not self._append(log, columns):
            return
        if self._actions is not None:
            self._remember_clicks(events, times)
            if not self._new_times:
                self._send_clicks(float(times[-1]))
        self._events += len(events)
        self._positives += int(np.nansum(events.labels.reshape(len(events), -1)[:, 0]))
        self._last = self._now()
        self._progress(len(events))

    def _remember_clicks(self, events: RawEvents, times: Floats) -> None:
        # One delay for each event, so that they do not depend on how the stream is cut.
        times = times + self._random.exponential(self._settings.delay, len(events))
        keys = events.columns[self._features.key]
        for i in np.flatnonzero(events.labels).tolist():
            heapq.heappush(self._clicks, (float(times[i]), self._events + i, keys[i]))

    def _send_clicks(self, until: float) -> None:
        """Send the clicks up to a time."""
        ready: list[tuple[float, int, Json]] = []
        while self._clicks and self._clicks[0][0] <= until:
            ready.append(heapq.heappop(self._clicks))
        for first in range(0, len(ready), MOST_AT_ONCE):
            times, _, keys = zip(*ready[first : first + MOST_AT_ONCE])
            columns = {self._features.key: keys, self._features.time: self._written(times)}
            if self._append(self._actions, columns):
                self._sent += len(keys)
            else:
                self._left += len(keys)

    def _send_rest(self) -> None:
        """Send the clicks that are left after the last event."""
        while self._new_times and self._clicks and not self._stopped():
            self._pause(self._clicks[0][0] - self._now())
            self._send_clicks(self._now())
        if not self._stopped():
            self._send_clicks(float("inf"))

    def _append(self, log: MessageLog, columns: Mapping[str, Sequence[Json]]) -> bool:
        """Append messages, again while the log cannot be reached; return False after a stop."""
        names = list(columns)
        rows = zip(*columns.values())
        messages = [self._encode(dict(zip(names, row))).encode() for row in rows]
        return self._retrying(lambda: log.append(messages)) is not None

    def _written(self, times: Sequence[float] | Floats) -> list[float | str]:
        """Return times as the features file says that they are written."""
        form = self._features.time_format
        if form is None:
            return np.round(times, 3).tolist()
        dates = [datetime.fromtimestamp(float(each), timezone.utc) for each in times]
        return [f"{date:{form}}" for date in dates]

    def _pause(self, seconds: float) -> None:
        """Wait for what is due next, but long enough to send some of it together."""
        if seconds > 0:
            self._wait(min(max(seconds, _TICK), _LONGEST_WAIT))


def _label_columns(labels: Array) -> list[list[float | None]]:
    """Return the JSON values of each label, given as [n] or [n, T]."""
    if labels.ndim == 1:
        return [labels.tolist()]
    return [[None if np.isnan(x) else x for x in column] for column in labels.T.tolist()]
