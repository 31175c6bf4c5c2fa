"""Count messages that are no events, and set them aside with their reason."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cowclip_merlin.online.logs.message_log import Message, Position

MOST_LINES = 10_000
"""Lines that the file holds at most."""

MOST_BYTES = 1000
"""Bytes of a message in the file at most."""


class DamagedMessages:
    """The damaged messages of one log.

    Args:
        file: takes a line of JSON for each of them: position, reason and text; None: only count.

    Attributes:
        count: of this process.
        newest: reason of the newest one; empty before the first.
    """

    def __init__(self, file: Path | None) -> None:
        self._file, self.count, self.newest = file, 0, ""
        self._lines, self._last = _known(file)
        self._counted: Position | None = None
        # A process that was killed while it wrote has left a part of a line.
        whole = file is None or not file.exists() or file.read_bytes()[-1:] in (b"", b"\n")
        self._start = "" if whole else "\n"

    def add(self, messages: Sequence[Message], reasons: Mapping[int, str]) -> None:
        """Count messages that are damaged, and write those that the file does not have.

        Args:
            messages: in the order of the log.
            reasons: index of a damaged message -> what is wrong.
        """
        # Messages that are in no batch after a restart are read twice.
        uncounted = _after(self._counted, messages, reasons)
        if not uncounted:
            return
        self.count += len(uncounted)
        self._counted, self.newest = messages[uncounted[-1]].after, reasons[uncounted[-1]]
        # After a restart, messages are read again.
        new = _after(self._last, messages, reasons)
        lines = [_line(messages[i], reasons[i]) for i in new[: MOST_LINES - self._lines]]
        if lines and self._file is not None:
            with self._file.open("a", encoding="utf-8") as stream:
                stream.writelines([self._start, *lines])
            self._start = ""
            self._lines += len(lines)
        if new:
            self._last = messages[new[-1]].after


def _after(
    place: Position | None, messages: Sequence[Message], reasons: Mapping[int, str]
) -> list[int]:
    """Return the indices of the damaged messages after a place; None: all."""
    return [i for i in sorted(reasons) if place is None or messages[i].after > place]


def _line(message: Message, reason: str) -> str:
    text = message.value[:MOST_BYTES].decode("utf-8", "backslashreplace")
    return json.dumps({"after": message.after, "reason": reason, "text": text}) + "\n"


def _known(file: Path | None) -> tuple[int, Position | None]:
    """Lines of the file, and the position of the last one."""
    if file is None or not file.exists():
        return 0, None
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in reversed(lines):
        try:
            return len(lines), tuple(json.loads(line)["after"])
        except (ValueError, KeyError, TypeError):  # a process was killed while it wrote
            continue
    return len(lines), None
