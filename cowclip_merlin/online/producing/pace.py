"""When events are sent: a clock, and the pace at which a stream is played."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.types import Floats


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
