"""A lock that many readers share, and that a writer gets soon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

READERS = 16
"""Readers that may hold a lock at the same moment."""


class SharedLock:
    """Held by any number of readers up to `READERS`, or by one writer.

    A writer that waits keeps new readers out. A plain lock would not do: a thread that releases it
    and asks again at once often gets it before a thread that has waited.

    >>> lock = SharedLock()
    >>> with lock.reading(), lock.reading():
    ...     pass
    >>> with lock.writing():
    ...     pass
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()  # held for a moment by readers, and by a writer to its end
        self._places = threading.Semaphore(READERS)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep writers out within the block."""
        with self._turn:
            self._places.acquire()
        try:
            yield
        finally:
            self._places.release()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep everyone else out within the block."""
        with self._turn:
            for _ in range(READERS):
                self._places.acquire()
            try:
                yield
            finally:
                self._places.release(READERS)
