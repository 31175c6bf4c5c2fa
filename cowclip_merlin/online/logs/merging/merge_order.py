"""The order in which messages of several logs were merged, in a file, so that it is repeated.

[[0], [12], [7]]     the place in each log where the order begins
1 15                 then messages of log 1 up to its place (15,)
0 3                  then messages of log 0 up to its place (3,)
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import Position
from cowclip_merlin.system.files import atomic_write

Places = tuple[Position, ...]
"""A place in each log."""

MANY = 10_000
"""Lines that are no longer needed before the file is written again without them."""


class Run(NamedTuple):
    """Messages of one log that follow each other in the merged order.

    Attributes:
        part: number of the log.
        until: the place there after the last of them.
    """

    part: int
    until: Position

    def line(self) -> str:
        """Return its line in the file."""
        return f"{self.part} {' '.join(map(str, self.until))}\n"


class MergeOrder:
    """What is known of the order. Each run survives the death of the process after `add`.

    Args:
        file: to read, and to append to; None keeps the order in memory only.

    Raises:
        InputError: the file is damaged.

    Attributes:
        base: where the order begins; None: nothing is known.
        runs: what follows there.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._stream: IO[str] | None = None
        self.base: Places | None = None
        self.runs: list[Run] = []
        if file is not None and file.exists():
            with file.open("rb") as stream:
                known = self.read_on(stream)
                if known < stream.seek(0, os.SEEK_END):  # a line that a killed process has left
                    self._replace(self.base, self.runs)

    def find(self, places: Places) -> int | None:
        """Return the number of the run in which, or before which, some places are.

        Args:
            places: in all logs.

        Returns:
            The number of runs if the places are after the last one; None if the order does not
            pass them.
        """
        if self.base is None:
            return None
        now = self._base_of(places)
        wanted, total = _count(places), _count(now)
        for index, (part, until) in enumerate(self.runs):
            if part >= len(now):
                return None
            total += until[0] - now[part][0]
            if total >= wanted:
                others = [*now[:part], places[part], *now[part + 1 :]]
                is_here = others == list(places) and now[part] <= places[part] <= until
                return index if is_here else None
            now[part] = until
        return len(self.runs) if now == list(places) else None

    def is_before(self, places: Places) -> bool:
        """Return whether all runs end before some places; False if there are none.

        So it is after a power failure, which may cost the newest lines of the file.
        """
        ends = dict(enumerate(self._base_of(places))) | dict(self.runs)
        return bool(self.runs) and all(ends[i] <= place for i, place in enumerate(places))

    def begin(self, places: Places) -> None:
        """Forget what is known, and begin at some places."""
        self._replace(places, [])

    def add(self, runs: Sequence[Run]) -> None:
        """Keep what follows."""
        if self._file is not None:
            if self._stream is None:
                self._stream = self._file.open("a", encoding="utf-8")
            self._stream.writelines(run.line() for run in runs)
            self._stream.flush()
        self.runs += runs

    def forget(self, index: int, places: Places) -> bool:
        """Forget the runs before some places, if there are many.

        Args:
            index: what `find` returns for them.
            places: in all logs.
        """
        if index >= MANY:
            self._replace(places, self.runs[index:])
        return index >= MANY

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _base_of(self, places: Places) -> list[Position]:
        """Where the order begins in each log; logs that came later begin with their start."""
        base = list(self.base or ())
        return base + [(0,) * len(places[0])] * (len(places) - len(base))

    def _replace(self, base: Places, runs: list[Run]) -> None:
        self.close()
        self.base, self.runs = base, runs
        if self._file is not None:
            with atomic_write(self._file) as temporary, temporary.open("w") as stream:
                stream.write(json.dumps(base) + "\n")
                stream.writelines(run.line() for run in runs)

    def read_on(self, stream: IO[bytes], known: int = 0) -> int:
        """Take over what a file knows after so many bytes, which were taken over before.

        Args:
            stream: the file.
            known: bytes; 0: forget what is known.

        Returns:
            The bytes that are taken over now: without a last line that is not finished.

        Raises:
            InputError: the file is damaged.
        """
        stream.seek(known)
        whole, end, _ = stream.read().rpartition(b"\n")
        lines = whole.decode("utf-8", "replace").split("\n") if known == 0 or end else []
        base, runs = (_base_in(lines.pop(0)), []) if known == 0 else (self.base, self.runs)
        if not base or not all(re.fullmatch(r"\d+( \d+)+", line) for line in lines):
            raise InputError(
                f"{stream.name}: damaged; it is the order in which messages were read: remove it, "
                "and set `on_restart` skip to go on with the newest messages"
            )
        for line in lines:
            part, *until = map(int, line.split())
            runs.append(Run(part, tuple(until)))
        self.base, self.runs = base, runs
        return known + len(whole) + len(end)


def _base_in(line: str) -> Places:
    """The first line of a file; () if it is damaged."""
    try:
        return tuple(tuple(map(int, place)) for place in json.loads(line))
    except (ValueError, TypeError):
        return ()


def _count(places: Sequence[Position]) -> int:
    """The messages before some places."""
    return sum(place[0] for place in places)
