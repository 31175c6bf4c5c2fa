"""Tell when something is to be done again."""

from __future__ import annotations

import time


class Timer:
    """Is due every so many seconds, for the first time after that.

    Args:
        seconds: between two times; 0 for always.

    >>> Timer(0).due(), Timer(60).due()
    (True, False)
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the last `reset`."""
        return time.monotonic() - self._last

    def due(self) -> bool:
        """Whether so many seconds have passed since the last `reset`."""
        return self.elapsed >= self._seconds

    def reset(self) -> None:
        """Begin to count again."""
        self._last = time.monotonic()
