"""Stop a training run with a checkpoint when a signal comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cowclip_merlin.system.signals import signal_handler


class Stopped(Exception):
    """A signal stopped the training, after a checkpoint was written.

    Attributes:
        signal_number: number of the signal.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class GracefulStop:
    """Remembers SIGINT and SIGTERM; a second signal ends the program at once.

    Attributes:
        signal_number: number of the signal, None before any signal.
    """

    signal_number: int | None = None

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Catch the signals within the block. Only the main thread receives signals."""

        def remember(number: int, _: Any) -> None:
            if self.signal_number:
                raise KeyboardInterrupt
            self.signal_number = number

        with signal_handler([signal.SIGINT, signal.SIGTERM], remember):
            yield
