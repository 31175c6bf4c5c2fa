"""What a stream trained, step by step, so that a restart makes the same steps again.

To choose a step is to look at clocks, at what has come, and at `max_wait`. To execute it is a
function of the log and the step. So each step is noted before it is executed:

    RUN/steps/40000.jsonl                                        after the snapshot 40000
    {"until": [41024, 0, 907520], "factor": 1, "now": 1700000000}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from cowclip_merlin.online.logs.message_log import Position
from cowclip_merlin.system.files import atomic_write

BEGIN, TRAIN, SYNC, KNOWN, SAVE, HEAR, END = (
    "begin", "train", "sync", "known", "save", "hear", "end"
)  # fmt: skip
"""What a step does: begin to read at `until`; train; send servers what has changed; tell them of
the snapshot `number`; save one; hear of the other workers; end. Only `TRAIN` is noted.
"""


class Step(NamedTuple):
    """What all workers of a stream do next; to train is all that one notes.

    The messages of a step are those after the step before, up to a place. Those without events make
    an empty one.

    Attributes:
        until: how far the log is read, in each partition.
        factor: times the batch size that its hyper-parameters are for.
        now: seconds since 1970; messages from far beyond are refused.
        do: what it does.
        number: to begin a new run from another one, the time of the first event; or of a snapshot.
    """

    until: Position
    factor: int = 1
    now: int = 0
    do: str = TRAIN
    number: int = -1

    def line(self) -> str:
        """Return its line in the journal."""
        return json.dumps({"until": self.until, "factor": self.factor, "now": self.now}) + "\n"


class StepJournal:
    """Notes steps in one file for each snapshot.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[str] | None = None

    def after(self, snapshot: int) -> list[Step]:
        """Return the steps that were noted after a snapshot, also after later ones."""
        files = sorted(each for each in self._snapshots() if each >= snapshot)
        return [step for each in files for step in _read(self._path(each))]

    def begin(self, snapshot: int, *, keep: Sequence[int]) -> None:
        """Note the next steps after this snapshot.

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
        # A later snapshot may be damaged: then its steps follow, too.
        path = self._path(max([snapshot, *known]))
        with atomic_write(path) as temporary:  # without what a killed process left of a line
            temporary.write_text("".join(step.line() for step in _read(path)), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def note(self, step: Step) -> None:
        """Note a step before it is executed; it survives the death of the process."""
        self._file.write(step.line())
        self._file.flush()

    def forget(self) -> None:
        """Forget all steps."""
        self.close()
        for each in self._snapshots():
            self._path(each).unlink()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _snapshots(self) -> Iterator[int]:
        for path in self._folder.glob("*.jsonl"):
            if path.stem.isdigit():
                yield int(path.stem)

    def _path(self, snapshot: int) -> Path:
        return self._folder / f"{snapshot}.jsonl"


def _read(path: Path) -> list[Step]:
    """Steps of a file, without a last line that is not finished."""
    if not path.exists():
        return []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    found = map(json.loads, lines)
    return [Step(**each | {"until": tuple(each["until"])}) for each in found]
