"""Wait for all workers of one attempt: forward signals, and end the others after a failure."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cowclip_merlin.launcher.outcome import Ended, Outcome
from cowclip_merlin.launcher.relay import Relay
from cowclip_merlin.system.signals import signal_handler

_PAUSE = 0.05
"""Seconds between two looks at the workers."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the launcher waits, in seconds.

    Attributes:
        grace: for the others to end by themselves after one has failed.
        term: for them to end after SIGTERM; then they are killed.
        stop: for the others after one has stopped in order: worker 0 may write a checkpoint.
    """

    grace: float = 30.0
    term: float = 10.0
    stop: float = 600.0


class Process(Protocol):
    """A worker, wherever it runs."""

    def poll(self) -> Ended | None:
        """Return how it ended; None while it runs."""

    def new_output(self) -> tuple[bytes, bytes]:
        """Return what came to standard output and standard error since the last call."""

    def send(self, number: int) -> None:
        """Send it a signal."""


class _Watch:
    """What the launcher knows while it waits."""

    def __init__(self, processes: Sequence[Process], patience: Patience) -> None:
        self.running = list(processes)
        self.ends: list[Ended] = []
        self.signals: list[int] = []
        self._patience = patience
        self._forwarded = 0
        self._deadlines: list[tuple[float, int]] | None = None

    def look(self) -> None:
        """Note who has ended, and send the signals that are due."""
        for process in list(self.running):
            ended = process.poll()
            if ended is not None:
                self.running.remove(process)
                self.ends.append(ended)
                self._plan_end(ended)
        self._forward()
        while self._deadlines and time.monotonic() > self._deadlines[0][0]:
            self._send(self._deadlines.pop(0)[1])

    def _plan_end(self, ended: Ended) -> None:
        """Plan when the others must end after the first one that did not succeed."""
        if ended.code == 0:
            return
        orderly = ended.stopped_by is not None
        due = time.monotonic() + (self._patience.stop if orderly else self._patience.grace)
        waiting = self._deadlines is not None and len(self._deadlines) == 2
        if self._deadlines is None or (waiting and due < self._deadlines[0][0]):
            kill = due + self._patience.term
            self._deadlines = [(due, signal.SIGTERM), (kill, signal.SIGKILL)]

    def _forward(self) -> None:
        if len(self.signals) > self._forwarded:
            self._send(self.signals[0] if self._forwarded == 0 else signal.SIGKILL)
            self._forwarded += 1

    def _send(self, number: int) -> None:
        for process in self.running:
            process.send(number)


def watch(processes: Sequence[Process], patience: Patience) -> Outcome:
    """Wait until all workers have ended, and show the output of the first one.

    SIGINT and SIGTERM go to all workers once; a second signal kills them.

    Args:
        processes: the workers by rank.
        patience: how long the others may go on after a failure.
    """
    state, relay = _Watch(processes, patience), Relay()

    def remember(number: int, _: object) -> None:
        state.signals.append(number)

    with signal_handler([signal.SIGINT, signal.SIGTERM], remember):
        while state.running:
            state.look()
            relay.show(*processes[0].new_output())
            if state.running:
                time.sleep(_PAUSE)
        relay.show(*processes[0].new_output())
    relay.close()
    number = state.signals[0] if state.signals else None
    return Outcome(state.ends, number, killed=len(state.signals) > 1)
