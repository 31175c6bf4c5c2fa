"""The sizes of the batches since each snapshot, so that a restart makes the same steps again.

`max_wait` and `catch_up` cut batches by the clock, and messages ahead of the clock are refused.
So each batch is noted before its step:

    RUN/batches/40000.csv     after the snapshot 40000
    1024,1                    its events, and times the batch size that its rates are for
    1024,1,[[2051,2060]]      the same, and the first and last messages that the clock refused
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.system.files import atomic_write
from cowclip_merlin.types import Array

Range = tuple[int, int]
"""First and last number of refused messages: the first numbers of the positions after them.

Messages in between that are no events may belong to it; events do not."""


class Batch(NamedTuple):
    """A batch of the journal.

    Attributes:
        size: its events.
        factor: times the batch size that its hyper-parameters are for.
        refused: messages of the log, up to its end, that the clock refused.
    """

    size: int
    factor: int
    refused: tuple[Range, ...] = ()

    def line(self) -> str:
        """Return its line in the journal."""
        refused = f",{json.dumps(self.refused, separators=(',', ':'))}" if self.refused else ""
        return f"{self.size},{self.factor}{refused}\n"


class BatchJournal:
    """Notes batches in one file for each snapshot.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[str] | None = None

    def after(self, snapshot: int) -> list[Batch]:
        """Return the batches that were noted after a snapshot, also after later ones."""
        files = sorted(each for each in self._snapshots() if each >= snapshot)
        return [batch for each in files for batch in _read(self._path(each))]

    def begin(self, snapshot: int, *, keep: list[int]) -> None:
        """Note the next batches after this snapshot.

        Args:
            snapshot: its number.
            keep: snapshots that may still be loaded; files of older ones are removed.
        """
        self.close()
        self._folder.mkdir(exist_ok=True)
        oldest, known = min([*keep, snapshot]), list(self._snapshots())
        for each in known:
            if each < oldest:
                self._path(each).unlink()
        # A later snapshot may be damaged: then its batches follow, too.
        path = self._path(max([snapshot, *known]))
        self._write(path, _read(path))  # without a line that a killed process has left unfinished
        self._file = path.open("a", encoding="utf-8")

    def replace(self, snapshot: int, made: Sequence[Batch], left: Sequence[Batch]) -> None:
        """Note what was trained again in place of all batches after a snapshot.

        Args:
            snapshot: its number.
            made: the batches that were trained, of which the last one may be short or empty.
            left: those for which the log had no events; what the clock refused in them stays so.
        """
        whole = [batch for batch in made if batch.size]
        rest = (*whole[-1:], *made[len(whole) :], *left)
        refused = tuple(each for batch in rest for each in batch.refused)
        whole[-1:] = [batch._replace(refused=refused) for batch in whole[-1:]]
        later = [each for each in self._snapshots() if each > snapshot]
        self._write(self._path(snapshot), whole)
        for each in later:
            self._path(each).unlink()

    def note(self, batch: Batch) -> None:
        """Note a batch before its step; it survives the death of the process."""
        self._file.write(batch.line())
        self._file.flush()

    def forget(self) -> None:
        """Forget all batches."""
        self.close()
        for each in self._snapshots():
            self._path(each).unlink()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, path: Path, batches: Sequence[Batch]) -> None:
        self._folder.mkdir(exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text("".join(batch.line() for batch in batches), encoding="utf-8")

    def _snapshots(self) -> Iterator[int]:
        for path in self._folder.glob("*.csv"):
            if path.stem.isdigit():
                yield int(path.stem)

    def _path(self, snapshot: int) -> Path:
        return self._folder / f"{snapshot}.csv"


def _read(path: Path) -> list[Batch]:
    """Batches of a file, without a last line that is not finished."""
    if not path.exists():
        return []
    lines = re.findall(
        r"^(\d+),(\d+)(?:,(\[.*\]))?\n", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    return [
        Batch(int(size), int(factor), tuple(map(tuple, json.loads(refused or "[]"))))
        for size, factor, refused in lines
    ]


class RefusedMessages:
    """Collects what the clock refuses, in the order of the log.

    Ranges, since a wrong clock may refuse millions of messages before the next event.

    >>> refused = RefusedMessages()
    >>> refused.add(np.array([1, 2, 3, 4]), np.array([True, True, False, True]), np.arange(4) == 2)
    >>> refused.add(np.array([5]), np.array([True]), np.array([False]))
    >>> refused.take(until=4), refused.take(until=9)
    ([(1, 2), (4, 4)], [(5, 5)])
    """

    def __init__(self) -> None:
        self._ends = array("q")  # first and last of each range
        self._goes_on = False  # whether the newest message that counts was refused

    def add(
        self, numbers: Array, refused: npt.NDArray[np.bool_], events: npt.NDArray[np.bool_]
    ) -> None:
        """Note which of the next messages were refused.

        Args:
            numbers: of the messages, ascending, int64 [n].
            refused: by the clock, bool [n].
            events: those that are events, bool [n]; no range goes past one of them.
        """
        counts = refused | events
        numbers, refused = numbers[counts], refused[counts]
        if not len(numbers):
            return
        goes_on = self._goes_on and bool(self._ends)
        steps = np.diff(np.concatenate([[goes_on], refused, [False]]).astype(np.int8))
        firsts, lasts = numbers[steps[:-1] > 0].tolist(), numbers[steps[1:] < 0].tolist()
        if goes_on and refused[0]:
            self._ends[-1] = lasts.pop(0)
        self._ends.extend(each for ends in zip(firsts, lasts, strict=True) for each in ends)
        self._goes_on = bool(refused[-1])

    def take(self, until: int) -> list[Range]:
        """Return the ranges up to a number, and forget them."""
        ranges = list(zip(self._ends[::2], self._ends[1::2], strict=True))
        taken = [(first, min(last, until)) for first, last in ranges if first <= until]
        left = [(max(first, until + 1), last) for first, last in ranges if last > until]
        self._ends = array("q", [each for ends in left for each in ends])
        return taken


def are_in(ranges: Sequence[Range], numbers: Array) -> npt.NDArray[np.bool_]:
    """Return which numbers of messages are in ascending ranges, bool [n].

    >>> are_in([(1, 2), (5, 5)], np.array([0, 1, 2, 3, 5, 6])).tolist()
    [False, True, True, False, True, False]
    """
    if not ranges:
        return np.zeros(len(numbers), bool)
    firsts, lasts = np.array(ranges, np.int64).T
    place = np.searchsorted(firsts, numbers, side="right") - 1
    return (place >= 0) & (numbers <= lasts[place])
