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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from cowclip_merlin.online.training.refused import Range
from cowclip_merlin.system.files import atomic_write


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
