"""An orderly end of a training run when a signal comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cowclip_merlin.system.signals import handled


class Stopped(Exception):
    """A signal asked for an end; a checkpoint was written.

    Attributes:
        signal_number: the signal.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class StopSignals:
    """Remembers SIGINT and SIGTERM; a second one ends the program at once.

    Attributes:
        came: number of the signal that came, or None.
    """

    came: int | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch the signals within the block; in another thread than the main one none come."""

        def remember(number: int, _: Any) -> None:
            if self.came:
                raise KeyboardInterrupt
            self.came = number

        with handled([signal.SIGINT, signal.SIGTERM], remember):
            yield
