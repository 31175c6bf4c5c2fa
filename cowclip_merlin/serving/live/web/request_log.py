"""Counts and times of requests, for the status page and for Prometheus."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field

RECENT = 60.0
"""Seconds of requests that the percentiles are of."""

MOST_RECENT = 4096
"""Requests that the percentiles are of at most."""

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper ends of the buckets of the histogram of times, in seconds."""


@dataclass
class RequestLog:
    """What the requests to `/v1/predict` were; only the event loop's thread uses it.

    Attributes:
        answers: HTTP status -> responses.
        events: scored.
        ids: looked up for them.
        absent: of these ids, those that have no row.
        running: requests that have no response yet.
        seconds: all times of responses with 200 together.
        buckets: of these responses, those in each of `BUCKETS` and above the last one.
    """

    answers: Counter[int] = field(default_factory=Counter)
    events: int = 0
    ids: int = 0
    absent: int = 0
    running: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    _recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_RECENT))

    def note(self, status: int, seconds: float) -> None:
        """Count a response; those with 200 also by their time."""
        self.answers[status] += 1
        if status == 200:
            self.seconds += seconds
            self.buckets[bisect_left(BUCKETS, seconds)] += 1
            self._recent.append((time.monotonic(), seconds))

    def note_scored(self, events: int, ids: int, absent: int) -> None:
        """Count the events of a response."""
        self.events += events
        self.ids += ids
        self.absent += absent

    @property
    def total(self) -> int:
        """All responses."""
        return sum(self.answers.values())

    def milliseconds(self, *shares: float) -> list[float | None]:
        """Percentiles of the time of recent answers, None without one.

        >>> log = RequestLog()
        >>> for i in range(101):
        ...     log.note(200, i / 1000)
        >>> log.milliseconds(0.5, 0.99)
        [50.0, 99.0]
        """
        since = time.monotonic() - RECENT
        times = sorted(seconds for when, seconds in self._recent if when >= since)
        if not times:
            return [None] * len(shares)
        return [round(1000 * times[int(share * (len(times) - 1))], 3) for share in shares]
