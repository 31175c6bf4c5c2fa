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
        self._followed, self._inode, self._known = order, 0, 0
        self._moved: int | None = None  # the run after those that `_merge` has read
        self._rewritten = False  # since `read` began: runs have other numbers

    def read(self, position: Position, most: int, wait: float = 0.0) -> list[Message]:
        """Read messages after a position, as far as their order is known."""
        self._refresh()
        self._moved, self._rewritten = None, False
        found = super().read(position, most, wait)
        if self._moved is not None and self._at is not None:
            self._at = self._at[0], self._moved
        elif self._rewritten:
            self._at = None
        return found

    def past_gaps(self, position: Position) -> Position:
        """Return the position: the other process looks for gaps."""
        return position

    def _merge(self, places: list[Position], most: int) -> tuple[list[Message], list[Run]]:
        """Take messages whose order is known now."""
        if not self._refresh() or (index := self._order.find(tuple(places))) is None:
            return [], []
        found, self._moved = self._repeat(index, places, most)
        return found, []

    def _wait(self, places: Sequence[Position], seconds: float) -> None:
        time.sleep(min(seconds, _LOOK))

    def _refresh(self) -> bool:
        """Read what has come to the file, or all of it if it was written again; or nothing."""
        try:
            stream = self._followed.open("rb")
        except FileNotFoundError:
            return False
        with stream:
            about, before = os.fstat(stream.fileno()), self._known
            if about.st_ino != self._inode or about.st_size < self._known:
                self._inode, self._known, self._at = about.st_ino, 0, None
                self._moved, self._rewritten = None, True
            if about.st_size > self._known:
                self._known = self._order.read_on(stream, self._known)
        return self._known != before

    @cached_property
    def _order(self) -> MergeOrder:
        return MergeOrder(None)
