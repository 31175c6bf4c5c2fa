"""What all workers do next: worker 0 says it, and the others follow.

Each turn is one exchange of a few numbers, in which every worker tells the others about itself.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import Position
from cowclip_merlin.tables.layout import TableStatistics
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.agreement import arrays_of_all, texts_of_all
from cowclip_merlin.workers.collectives import gather

NOTHING, READ, STEP, SAVE, COLLECT, ARRIVED, KNOWN, END = range(8)
"""Kinds of turns: nothing; read messages; execute a step; save a snapshot; collect changes for
servers; they have arrived there; servers know a snapshot; end.
"""

_PLACED = (READ, STEP)  # kinds with `until`

_SILENCE = 0.5  # seconds after which worker 0 asks whether a signal has reached another worker

Loaded = TypeVar("Loaded")


class Turn(NamedTuple):
    """What to do.

    Attributes:
        kind: one of the kinds above.
        number: of events in a step, or of a snapshot.
        factor: of a step; to save, whether servers follow.
        now: of a step.
        until: how far to read; of a step.
    """

    kind: int
    number: int = 0
    factor: int = 1
    now: int = 0
    until: Position = ()


class About(NamedTuple):
    """What a worker tells of itself.

    Attributes:
        signal_number: the signal that it received; 0 before any.
        rows: ids that have a row there.
        expired: ids that it dropped by their time to live.
        evicted: ids that it dropped by the bound.
        refused: occurrences that it did not admit.
        breaks: of its `TableChanges`.
    """

    signal_number: int = 0
    rows: int = 0
    expired: int = 0
    evicted: int = 0
    refused: int = 0
    breaks: int = 0

    @classmethod
    def of(cls, signal_number: int | None, table: TableStatistics, breaks: int = 0) -> About:
        """Return what there is to tell."""
        rows = sum(table.rows)
        return cls(signal_number or 0, rows, table.expired, table.evicted, table.refused, breaks)

    @classmethod
    def sum(cls, every: list[About]) -> About:
        """Return the sums over workers."""
        return cls(*map(sum, zip(*every)))


class Start(NamedTuple):
    """Where all workers begin.

    Attributes:
        position: in the log of events.
        first: time of the first event, of a new run that starts from another one; or None.
        servers: whether servers follow.
    """

    position: Position
    first: int | None = None
    servers: bool = False


class Alone:
    """The turns of a training in one process: nobody hears them.

    Attributes:
        size: number of workers.
        others: what the other workers told in the last turn.
    """

    size = 1

    def __init__(self) -> None:
        self.others: list[About] = []

    def load(self, number: int, load: Callable[[], Loaded]) -> Loaded:
        """Let all workers load a snapshot.

        Args:
            number: of the snapshot.
            load: loads this worker's part.

        Raises:
            InputError: a part is damaged.
        """
        return load()

    def begin(self, start: Start) -> None:
        """Say where all begin."""

    def say(self, turn: Turn) -> None:
        """Say what all do next."""

    def keep_in_touch(self) -> None:
        """Hear from the others, if the last turn was some time ago."""

    def say_sent(self, log: logging.Logger) -> None:
        """Say how many bytes of training this worker has sent."""


class Conductor(Alone):
    """Worker 0, which says what all do next.

    Args:
        group: this process and the others.
    """

    def __init__(self, group: Workers) -> None:
        super().__init__()
        self.group, self.size = group, group.size
        self.others = [About()] * (group.size - 1)
        self._last, self._events = time.monotonic(), 0

    def load(self, number: int, load: Callable[[], Loaded]) -> Loaded:
        """Let all workers load a snapshot; see `Alone.load`."""
        texts_of_all(self.group, json.dumps({"load": number}))
        return load_together(self.group, load)

    def begin(self, start: Start) -> None:
        """Say where all begin."""
        texts_of_all(self.group, json.dumps(start._asdict()))

    def say(self, turn: Turn) -> None:
        """Say what all do next."""
        _, self.others = _exchange(self.group, list(turn[:-1]), About())
        if turn.kind in _PLACED:
            arrays_of_all(self.group, np.array(turn.until, np.int64))
        self._events += turn.number if turn.kind == STEP else 0
        self._last = time.monotonic()

    def keep_in_touch(self) -> None:
        """Hear from the others, if the last turn was some time ago."""
        if time.monotonic() - self._last > _SILENCE:
            self.say(Turn(NOTHING))

    def say_sent(self, log: logging.Logger) -> None:
        """Say how many bytes of training this worker has sent."""
        sent, events = self.group.traffic.sent, max(self._events, 1)
        log.info(
            "sent %.3f MB to %d other workers, %.0f bytes per event",
            sent / 1e6,
            self.size - 1,
            sent / events,
        )


def hear_start(group: Workers) -> int | Start:
    """Return the number of a snapshot to load, or where all begin."""
    told = json.loads(texts_of_all(group, "")[0])
    if "load" in told:
        return told["load"]
    return Start(**told | {"position": tuple(told["position"])})


def hear(group: Workers, about: About) -> Turn:
    """Tell worker 0 of this worker, and return what it says next."""
    words, _ = _exchange(group, [0] * (len(Turn._fields) - 1), about)
    until = arrays_of_all(group, np.array((), np.int64))[0] if words[0] in _PLACED else np.array(())
    return Turn(*words, tuple(until.tolist()))


def load_together(group: Workers, load: Callable[[], Loaded]) -> Loaded:
    """Load this worker's part of a snapshot.

    Raises:
        InputError: on all workers, if a part is damaged.
    """
    found, problem = None, ""
    try:
        found = load()
    except InputError as error:
        problem = str(error)
    problems = [text for text in texts_of_all(group, problem) if text]
    if problems:
        raise InputError(problems[0])
    return found


def _exchange(group: Workers, words: list[int], about: About) -> tuple[list[int], list[About]]:
    """Exchange words and what workers tell; return the words of worker 0, and what others told."""
    tf = compat.tensorflow()
    own = np.array([*words, *about], np.int64)
    with tf.device("CPU:0"):
        every = gather(group, tf.constant(own.view(np.int32)), "turns", host=True).numpy()
    numbers = np.ascontiguousarray(every).view(np.int64).reshape(group.size, -1).tolist()
    told = [About(*row[len(words) :]) for rank, row in enumerate(numbers) if rank != group.rank]
    return numbers[0][: len(words)], told
