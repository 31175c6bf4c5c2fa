"""Watch the log that servers follow, and repeat a step in a thread."""

from __future__ import annotations

import threading
import time
import traceback
from abc import ABC, abstractmethod
from typing import NamedTuple

from cowclip_merlin.online.logs.message_log import LogUnavailable, MessageLog, Position
from cowclip_merlin.online.sync.sync_message import SYNCED, SyncMessage

_RETRY = 0.5  # seconds


class Repeat(ABC):
    """A thread that repeats `step` until it is stopped.

    Args:
        name: of the thread, for messages.
        every: seconds from one step to the next.

    Attributes:
        failure: the error that has ended the thread, as text; None while all is well.
        unavailable: steps that a log has ended since its server did not answer.
    """

    def __init__(self, name: str, *, every: float) -> None:
        self._every, self._ended = every, threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failure: str | None = None
        self.unavailable = 0

    @abstractmethod
    def step(self) -> None:
        """Do the work once."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        """Whether the thread was asked to end."""
        return self._ended.is_set()

    def stop(self) -> None:
        """End the thread after its current step."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def pause(self, seconds: float) -> None:
        """Wait within a step; returns at once when the thread is to end."""
        self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    self.step()
                except LogUnavailable:
                    self.unavailable += 1
                    self._ended.wait(_RETRY)
                self._ended.wait(self._every)
        except Exception:
            self.failure = traceback.format_exc()


class Sync(NamedTuple):
    """A sync that is complete in the log.

    Attributes:
        generation: counts the starts of the trainer.
        seq: number of the sync's last message in its generation.
        sent: when the trainer sent it, seconds since 1970.
        seen: when it was in the log.
        position: the place in the log of examples up to which the trainer has trained.
        trained: events trained so far.
    """

    generation: int
    seq: int
    sent: float
    seen: float
    position: Position
    trained: int


class SyncWatch(Repeat):
    """Reads the log in a thread.

    Args:
        log: that servers follow.

    Attributes:
        position: up to which the log was read.
        syncs: all syncs so far.
    """

    def __init__(self, log: MessageLog) -> None:
        super().__init__("syncs", every=0.0)
        self._log, self.position = log, log.start()
        self.syncs: list[Sync] = []

    def step(self) -> None:
        """Read messages, or wait a moment for them."""
        messages = self._log.read(self.position, most=64, wait=0.05)
        seen = time.time()
        for message in messages:
            self.position = message.after
            self._note(SyncMessage.decode(message.value), seen)

    def _note(self, message: SyncMessage, seen: float) -> None:
        info = message.info
        if message.kind == SYNCED:
            self.syncs.append(
                Sync(
                    generation=message.generation,
                    seq=message.seq,
                    sent=float(info["time"]),
                    seen=seen,
                    position=tuple(info["position"]),
                    trained=int(info["trained"]),
                )
            )

    def first_from(self, version: tuple[int, int], *, sent: float) -> Sync | None:
        """Return the first sync that is of a version or a later one, and was not sent before.

        Args:
            version: generation and number of a sync.
            sent: seconds since 1970.
        """
        later = (x for x in self.syncs if (x.generation, x.seq) >= version and x.sent >= sent)
        return next(later, None)

    def first_with(self, place: int) -> Sync | None:
        """Return the first sync whose model was trained on so many messages of the examples."""
        return next((sync for sync in self.syncs if sync.position[0] >= place), None)
