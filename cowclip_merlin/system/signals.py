"""Handle signals within a block: end with an exception, or stop a training with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signal_handler(
    numbers: Sequence[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle signals within the block; Python allows this only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit with 143, as Python turns SIGINT into KeyboardInterrupt."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with signal_handler([signal.SIGTERM], end):
        yield


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

        def remember(number: int, _: FrameType | None) -> None:
            if self.signal_number:
                raise KeyboardInterrupt
            self.signal_number = number

        with signal_handler([signal.SIGINT, signal.SIGTERM], remember):
            yield
