"""Show the state in the terminal: a block that is drawn again, or a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

LINE_EVERY = 10.0
"""Seconds between two lines where there is no terminal."""


class StatusBlock:
    """Some lines that always show the newest state.

    Args:
        out: where to write; a terminal gets a block, anything else one line every few seconds.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._drawn = 0  # lines of the block on the screen
        self._last = -LINE_EVERY

    def show(self, lines: Sequence[str]) -> None:
        """Show the state in place of the one before."""
        if self._out.isatty():
            self.clear()
            self._out.write("".join(f"{line}\n" for line in lines))
            self._drawn = len(lines)
        elif time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            self._out.write("; ".join(line.strip() for line in lines) + "\n")
        self._out.flush()

    def say(self, line: str) -> None:
        """Write a line that stays."""
        self.clear()
        self._out.write(f"{line}\n")
        self._out.flush()

    def clear(self) -> None:
        """Remove the block from the screen."""
        if self._drawn:
            self._out.write(f"\x1b[{self._drawn}A\x1b[J")
        self._drawn = 0
