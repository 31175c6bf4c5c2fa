"""The time of steps, and of the first one, which compiles."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

WAIT = 3.0
"""Seconds until a line says what the first step waits for."""

LONG = 1.0
"""Seconds from which on the first step does not count for the speed."""


class Lap:
    """The time of the steps from one scoring to the next, without pauses."""

    def __init__(self, first: int) -> None:
        self.first, self.seconds, self._started = first, 0.0, time.perf_counter()

    def pause(self) -> None:
        """Stop the clock."""
        self.seconds += time.perf_counter() - self._started

    def go_on(self) -> None:
        """Start it again."""
        self._started = time.perf_counter()


@contextmanager
def saying_that_it_compiles(log: logging.Logger) -> Iterator[None]:
    """Log a line if the block takes long; a run with new kernels compiles for some 20 seconds."""
    line = "compiling the first step; only the first run with these kernels takes long"
    timer = threading.Timer(WAIT, log.info, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
