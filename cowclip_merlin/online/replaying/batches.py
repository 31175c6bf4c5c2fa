"""Cut a log into batches of equal numbers of events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cowclip_merlin.online.events.events import Events


class BatchReader:
    """Reads batches in time order. Batches depend on the position in the log only.

    Args:
        pieces: the log, any number of events at a time.
        batch_size: events in a batch; the last one before a given time, or of the log, may be
            smaller.
        skip: events to skip at the start.
    """

    def __init__(self, pieces: Iterable[Events], batch_size: int, *, skip: int = 0) -> None:
        self._pieces, self._batch_size, self._skip = iter(pieces), batch_size, skip
        self._waiting: list[Events] = []  # events that were read and are in no batch yet

    def first_time(self) -> int | None:
        """Return the time of the next event in whole seconds; None at the end of the log."""
        if not self._waiting and not self._read():
            return None
        return int(self._waiting[0].times[0])

    def batches(self, before: int | None = None) -> Iterator[Events]:
        """Yield the batches of all events before a time, or of all events."""
        while batch := self._next_batch(before):
            yield batch

    def _next_batch(self, before: int | None) -> Events | None:
        while sum(map(len, self._waiting)) < self._batch_size and self._read():
            pass
        if not self._waiting:
            return None
        waiting = self._waiting[0]
        if len(self._waiting) > 1:  # each batch would otherwise copy all that is waiting
            waiting = type(waiting).concatenate(self._waiting)
        size = min(self._batch_size, len(waiting))
        if before is not None:
            size = min(size, int(np.searchsorted(waiting.times, before)))
        rest = waiting.filter(slice(size, None))
        self._waiting = [rest] if len(rest) else []
        return waiting.filter(slice(size)) if size else None

    def _read(self) -> bool:
        """Read a piece; return whether there was one."""
        for piece in self._pieces:
            skipped = min(self._skip, len(piece))
            self._skip -= skipped
            if skipped < len(piece):
                self._waiting.append(piece.filter(slice(skipped, None)))
                return True
        return False
