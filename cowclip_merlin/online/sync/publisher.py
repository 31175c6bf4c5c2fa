"""Send what has changed in a model to a log that servers follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessageLog, Position, Retrying
from cowclip_merlin.online.new_columns import noted
from cowclip_merlin.online.sync.served_changes import ChangedRows, TableChanges
from cowclip_merlin.online.sync.sync_message import (
    DENSE,
    GENERATION,
    SNAPSHOT,
    SYNCED,
    Part,
    SyncMessage,
    split_changes,
)
from cowclip_merlin.types import Json, JsonObject

if TYPE_CHECKING:
    from cowclip_merlin.online.training.trainer import OnlineTrainer


def sync_parts(trainer: OnlineTrainer, changed: ChangedRows, *, dense: bool = True) -> list[Part]:
    """Return what a sync sends, but for its end: rows and ids, and maybe dense weights.

    Args:
        trainer: whose model has changed.
        changed: its rows and ids.
        dense: whether to send the dense weights.
    """
    parts = list(split_changes(*changed, trainer.table.num_fields))
    if dense:
        weights = trainer.dense_weights()
        parts.append(Part(DENSE, {}, {f"dense{i}": x for i, x in enumerate(weights)}))
    return parts


class Publisher:
    """Sends rows that changed, ids that are gone and dense weights, at least once, in order.

    Messages go out in a thread. Until the log has acknowledged them, they are sent again as they
    are, and `sync` sends nothing new. What changes meanwhile goes with the next sync.

    Args:
        log: that servers follow.
        trainer: whose model; its state may be restored after this.
        changes: of the trainer; None: this asks it for them.
        warn: is called with a line if the log does not answer.

    Attributes:
        generation: number of this start of the trainer; 0 before `begin`.
    """

    def __init__(
        self,
        log: MessageLog,
        trainer: OnlineTrainer,
        changes: TableChanges | None = None,
        *,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._log, self._trainer, self.generation, self._warn = log, trainer, 0, warn
        self._changes = changes or trainer.served_changes()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._sending: Future[Position] | None = None
        self._ended = Event()
        self._retrying = Retrying(
            lambda error: warn(f"{error}; the sync waits, training goes on"),
            stopped=self._ended.is_set,
            sleep=self._ended.wait,
        )
        self._seq = 0
        self._snapshots: list[Position] = []  # places of the last messages that name one
        self._breaks = 0  # of the changes, that servers have got a snapshot for
        self._breaks_at: dict[int, int] = {}  # those before each snapshot that servers do not know

    @property
    def idle(self) -> bool:
        """Whether the log has acknowledged everything."""
        if self._sending is None or not self._sending.done():
            return self._sending is None
        self._sending.result()  # raises what the thread raised
        self._sending = None
        self._changes.arrived()  # what `sync` collected
        return True

    @property
    def needs_snapshot(self) -> bool:
        """Whether too many ids are gone to tell servers: they have to load a snapshot."""
        return self._changes.breaks > self._breaks

    def is_complete(self, snapshot: int) -> bool:
        """Whether a snapshot began after all ids were gone that are not remembered."""
        return self._breaks_at.get(snapshot, 0) == self._changes.breaks

    def begin(self, generation: int, run: str, snapshot: int) -> None:
        """Tell servers to load a snapshot."""
        self.generation, self._seq = generation, 0
        self._known(snapshot)
        self._send([Part(GENERATION, self._about(run, snapshot), {})], mark=True)

    def sync(self, info: Mapping[str, Json], *, dense: bool) -> bool:
        """Send what has changed; no step may run meanwhile.

        Args:
            info: of the message `SYNCED`.
            dense: whether to send the dense weights.

        Returns:
            Whether it is being sent. False: the sync before is not acknowledged yet.
        """
        if not self.idle:
            return False
        parts = sync_parts(self._trainer, self._changes.collect(), dense=dense)
        self._send([*parts, Part(SYNCED, {**info, "dense": dense, "time": time.time()}, {})])
        return True

    def snapshot_begins(self, snapshot: int) -> None:
        """Remember what changes from now on, until servers know this snapshot."""
        self._breaks_at[snapshot] = self._changes.breaks
        self._changes.snapshot_begins(snapshot)

    def snapshot_failed(self, snapshot: int) -> None:
        """Forget a snapshot that servers will not know."""
        self._breaks_at.pop(snapshot, None)
        self._changes.snapshot_failed(snapshot)

    def snapshot_ends(self, run: str, snapshot: int) -> bool:
        """Tell servers of a snapshot, and remove the messages before the one before it.

        What changed while it was written goes with the next sync again: a server that loads the
        snapshot begins with the message of this call.

        Returns:
            Whether it is being sent; if not, call it again.
        """
        if not self.idle:
            return False
        self._known(snapshot)
        self._send([Part(SNAPSHOT, self._about(run, snapshot), {})], mark=True)
        return True

    def _known(self, snapshot: int) -> None:
        """Remember nothing any more for a snapshot that servers know."""
        self._breaks = self._breaks_at.get(snapshot, self._breaks)
        self._breaks_at = {n: x for n, x in self._breaks_at.items() if n > snapshot}
        self._changes.snapshot_ends(snapshot)

    def _about(self, run: str, snapshot: int) -> JsonObject:
        return {"run": run, "snapshot": snapshot} | noted(self._trainer.features)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the log's acknowledgment, so many seconds at most; return whether it came."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self.idle:
            if until is not None and time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def close(self) -> None:
        """End the thread; what is not acknowledged is not sent again."""
        self._ended.set()
        self._threads.shutdown(wait=True)
        self._changes.close()

    def _send(self, parts: list[Part], *, mark: bool = False) -> None:
        messages = [
            SyncMessage(
                kind=part.kind,
                generation=self.generation,
                seq=self._seq + i,
                info=part.info,
                arrays=part.arrays,
            )
            for i, part in enumerate(parts)
        ]
        self._seq += len(messages)
        self._sending = self._threads.submit(self._append, messages, mark)

    def _append(self, messages: list[SyncMessage], mark: bool) -> None:
        values = [message.encode() for message in messages]

        def append() -> Position | None:
            begins = self._log.end() if mark else None
            self._log.append(values)
            return begins

        if (begins := self._retrying(append)) is not None:
            self._trim(begins)

    def _trim(self, begins: Position) -> None:
        """Remove the messages before those of the last snapshot but one."""
        self._snapshots = [*self._snapshots, begins][-2:]
        try:
            self._log.trim(self._snapshots[0])
        except (InputError, LogUnavailable) as error:  # with the next snapshot, perhaps
            self._warn(f"{error}; old messages of {self._log.name} stay there")


class LastSync(NamedTuple):
    """What the log of a trainer that ended says.

    Attributes:
        generation: the last one; 0 in an empty log.
        run: folder of the run; None in an empty log.
    """

    generation: int = 0
    run: str | None = None


def last_sync(log: MessageLog) -> LastSync:
    """Read a log to its end, and return what its last trainer sent.

    Raises:
        InputError: the log has other messages.
    """
    last, place = LastSync(), log.start()
    while messages := log.read(place, most=64):
        for each in messages:
            try:
                message = SyncMessage.decode(each.value)
            except InputError:
                raise InputError(
                    f"{log.name}: has other messages than those of a trainer; use another `to`"
                ) from None
            last = last._replace(generation=message.generation)
            if message.kind in (GENERATION, SNAPSHOT):
                last = last._replace(run=message.info["run"])
        place = messages[-1].after
    return last
