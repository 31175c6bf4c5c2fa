"""The frame of a process: signals, logs that are away, and a line every ten seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cowclip_merlin.online.logs.message_log import Retrying
from cowclip_merlin.online.report import Values
from cowclip_merlin.system.signals import GracefulStop
from cowclip_merlin.types import JsonObject

LINE_EVERY = 10.0
"""Seconds between two lines."""


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


class Service:
    """Makes the steps of a process until their end or a signal, and writes its lines.

    Args:
        log: takes the lines.
        while_away: what the process does while a log is away, for a line.
        stop: of the process; None for one of its own.

    Attributes:
        retry: makes a call again while a log is away, until a signal.
        newest: the numbers of the newest line.
    """

    def __init__(
        self, log: logging.Logger, while_away: str, stop: GracefulStop | None = None
    ) -> None:
        self.log, self.stop = log, stop or GracefulStop()
        self.newest: Values = {}
        self.retry = Retrying(
            lambda error: log.warning(f"%s; {while_away}", error),
            stopped=lambda: self.stop.signal_number is not None,
        )
        self._timer, self._count = Timer(LINE_EVERY), 0

    def run(self, step: Callable[[], bool], line: Callable[[], None]) -> None:
        """Make steps until one returns False, or until a signal.

        Args:
            step: whether there may be another one.
            line: calls `write_line`; is called between two steps when a line is due.
        """
        while self.stop.signal_number is None and step():
            if self.is_line_due:
                line()

    @property
    def is_line_due(self) -> bool:
        """Whether the last line is ten seconds old."""
        return self._timer.due()

    def begin(self, count: int) -> None:
        """Let the next `rate` be that since now."""
        self._count = count
        self._timer.reset()

    def rate(self, count: int) -> float:
        """Return by how much a count has grown per second since the line before."""
        rate = (count - self._count) / max(self._timer.elapsed, 1e-9)
        self.begin(count)
        return rate

    def write_line(
        self, values: JsonObject, text: str, *words: object, **more: float | None
    ) -> None:
        """Write a line.

        Args:
            values: its numbers, for JSON.
            text: with a place for each of the words.
            words: of the text.
            more: numbers that only `newest` has, or has instead of others.
        """
        self.newest = {**values, **more}
        self.log.info(text, *words, extra={"values": values})
