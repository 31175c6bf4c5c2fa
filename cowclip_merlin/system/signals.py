"""Handle signals within a block; turn SIGTERM into an exception, so that clean-up code runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def signal_handler(numbers: Sequence[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
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

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    with signal_handler([signal.SIGTERM], end):
        yield
