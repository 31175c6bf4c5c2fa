"""Repeat a step in a thread, and remember what went wrong."""

from __future__ import annotations

import threading
import traceback
from abc import ABC, abstractmethod

from cowclip_merlin.online.logs.message_log import LogUnavailable

_RETRY = 0.5  # seconds


class Repeat(ABC):
    """A thread that repeats `step` until it is stopped.

    Args:
        name: of the thread, for messages.
        every: seconds from one step to the next.

    Attributes:
        failure: the error that has ended the thread, as text; None while all is well.
        unavailable: steps that a log has ended since its server did not answer.
    """

    def __init__(self, name: str, *, every: float) -> None:
        self._every, self._ended = every, threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failure: str | None = None
        self.unavailable = 0

    @abstractmethod
    def step(self) -> None:
        """Do the work once."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        """Whether the thread was asked to end."""
        return self._ended.is_set()

    def stop(self) -> None:
        """End the thread after its current step."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def pause(self, seconds: float) -> None:
        """Wait within a step; returns at once when the thread is to end."""
        self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    self.step()
                except LogUnavailable:
                    self.unavailable += 1
                    self._ended.wait(_RETRY)
                self._ended.wait(self._every)
        except Exception:
            self.failure = traceback.format_exc()
