"""Call a message log again while its server is away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cowclip_merlin.online.logs.message_log import LogUnavailable

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 1.0
"""Seconds before the second call and between later ones; each pause is twice the one before."""

_LOOK = 0.2
"""Seconds after which a stop is seen at the latest."""

_T = TypeVar("_T")


class Retrying:
    """Makes calls of logs again and again while a log is away, until a stop.

    Only `LogUnavailable` means away. A refusal, such as of a password, is raised at once.

    Args:
        warn: takes the error once for each time that a log is away.
        stopped: whether to give up.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        warn: Callable[[LogUnavailable], object],
        *,
        stopped: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._warn, self._stopped, self._sleep = warn, stopped, sleep
        self._pause = 0.0  # the last one; 0 while the log answers

    def __call__(self, call: Callable[[], _T]) -> _T | None:
        """Return what a call returns once it succeeds; None after a stop."""
        while not self._stopped():
            try:
                answer = call()
            except LogUnavailable as error:
                self.wait(error)
            else:
                self.answered()
                return answer
        return None

    def wait(self, error: LogUnavailable) -> None:
        """Warn of the first error, and wait before the next call, or until a stop."""
        if not self._pause:
            self._warn(error)
        self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
        left = self._pause
        while left > 0 and not self._stopped():
            self._sleep(min(left, _LOOK))
            left -= _LOOK

    def answered(self) -> None:
        """Note that the log has answered."""
        self._pause = 0.0
