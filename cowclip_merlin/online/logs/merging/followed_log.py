"""Several logs as one, in the order that another process has chosen and keeps in a file."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from cowclip_merlin.online.logs.merging.merge_order import MergeOrder, Run
from cowclip_merlin.online.logs.merging.merged_log import MergedLog
from cowclip_merlin.online.logs.message_log import Message, MessageLog, Position

_LOOK = 0.005  # seconds between two looks at the file


class FollowedLog(MergedLog):
    """Reads what a `MergedLog` with this file reads, in the same order, in another process.

    Args:
        parts: the logs, as there.
        name: for messages.
        order: the file, which that process writes.
    """

    def __init__(self, parts: Sequence[MessageLog], *, name: str, order: Path) -> None:
        super().__init__(parts, name=name, order=order)
        self._followed, self._version = order, (0, 0)

    def read(self, position: Position, most: int, wait: float = 0.0) -> list[Message]:
        """Read messages after a position, as far as their order is known."""
        self._refresh()
        found = super().read(position, most, wait)
        self._at = None  # the numbers of the runs may change
        return found

    def past_gaps(self, position: Position) -> Position:
        """Return the position: the other process looks for gaps."""
        return position

    def _merge(self, places: list[Position], most: int) -> tuple[list[Message], list[Run]]:
        """Take messages whose order is known now."""
        self._refresh()
        index = self._order.find(tuple(places))
        return ([] if index is None else self._repeat(index, places, most)[0]), []

    def _wait(self, places: Sequence[Position], seconds: float) -> None:
        time.sleep(min(seconds, _LOOK))

    def _refresh(self) -> None:
        """Read the file again if it has changed."""
        if not self._followed.exists():
            return
        about = os.stat(self._followed)
        if (about.st_ino, about.st_size) != self._version:
            self._version = about.st_ino, about.st_size
            self._order.read_only(self._followed)

    @cached_property
    def _order(self) -> MergeOrder:
        return MergeOrder(None)
