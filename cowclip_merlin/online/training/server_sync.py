"""When a training on a stream sends its changes to servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import MessageLog
from cowclip_merlin.online.service import Timer
from cowclip_merlin.online.sync.publisher import Publisher, last_sync
from cowclip_merlin.online.sync.served_changes import TableChanges
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.online.training.steps import Do
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.system.files import read_json, write_json
from cowclip_merlin.types import Json

_GENERATION = "generation.json"

_LONGEST_END = 30.0  # seconds to wait at the end for the log
_AGAIN = 60.0  # seconds between two snapshots that only servers need


class ServerSync:
    """Sends changes every few seconds, and tells servers of snapshots.

    Args:
        log: that servers follow.
        trainer: a new one.
        changes: of the trainer.
        settings: of the stream.
        run: folder of the run.
        warn: is called with a line if the log does not answer.

    Attributes:
        syncs: sent so far by this process.

    Raises:
        InputError: the log has the messages of another run, or `generation.json` is damaged.
    """

    def __init__(
        self,
        log: MessageLog,
        trainer: OnlineTrainer,
        changes: TableChanges,
        settings: StreamSettings,
        run: Path,
        warn: Callable[[str], None],
    ) -> None:
        self._folder, self._warn, self.syncs = run, warn, 0
        self._run = settings.snapshots or str(run.resolve())  # where servers load snapshots
        last = last_sync(log)
        if last.run not in (None, self._run):
            raise InputError(
                f"{log.name}: has the model of {last.run}; use another `to`, or remove that log"
            )
        # Also if the log was emptied: servers follow the highest generation that they know.
        self._generation = max(last.generation, _known_generation(run / _GENERATION)) + 1
        self._publisher = Publisher(log, trainer, changes, warn=warn)
        self._timer, self._dense_timer = Timer(settings.sync_every), Timer(settings.dense_every)
        self._first = True
        self._announced: int | None = None  # a snapshot that servers do not know yet
        self._asked: Timer | None = None  # since servers last asked for a snapshot

    def begin(self, snapshot: int) -> None:
        """Tell servers to load a snapshot, and to follow from there."""
        write_json(self._folder / _GENERATION, self._generation)
        self._publisher.begin(self._generation, self._run, snapshot)

    def due(self) -> tuple[Do, int] | None:
        """Return what all workers do for servers now, and for which snapshot.

        Servers get the first sync at once. A later one is due if all before has arrived.
        """
        if not (self._first or self._timer.due()) or not self._publisher.idle:
            return None
        if self._announced is not None:
            return Do.KNOWN, self._announced
        return None if self._publisher.needs_snapshot else (Do.SYNC, -1)

    def sync(self, info: Mapping[str, Json]) -> None:
        """Send what has changed, as `due` says; no step may run meanwhile."""
        dense = self._first or self._dense_timer.due()
        self._publisher.sync(info, dense=dense)
        self._timer.reset()
        if dense:
            self._dense_timer.reset()
        self._first = False
        self.syncs += 1

    def tell(self, number: int) -> None:
        """Tell servers of a snapshot, as `due` says."""
        if not self._publisher.needs_snapshot:
            self._publisher.snapshot_ends(self._run, number)
        elif self._publisher.is_complete(number):
            self._generation, self._asked = self._generation + 1, None
            self.begin(number)
            self._warn(
                "too many ids have gone since the last sync to tell servers; they load snapshot "
                f"{number}"
            )
        self._announced, self._first = None, True  # a server that starts there needs all

    def asks_for_snapshot(self) -> bool:
        """Whether to write a snapshot now, without which servers cannot go on."""
        if self._announced is not None or not self._publisher.needs_snapshot:
            return False
        if not self._publisher.idle or not (self._asked is None or self._asked.due()):
            return False
        self._asked = Timer(_AGAIN)
        return True

    def snapshot_begins(self, number: int) -> None:
        """Remember what changes until servers know this snapshot."""
        self._publisher.snapshot_begins(number)

    def snapshot_ends(self, number: int) -> None:
        """Tell servers of a snapshot with the next sync."""
        self._announced = number

    def snapshot_failed(self, number: int) -> None:
        """Forget a snapshot that servers cannot load."""
        self._publisher.snapshot_failed(number)

    def last(self) -> Iterator[tuple[Do, int]]:
        """Yield what all workers do for a last sync, with the dense weights; see `due`."""
        self._first, before = True, self.syncs
        while self.syncs == before and self._publisher.wait(_LONGEST_END):
            if (due := self.due()) is not None:
                yield due
            elif self._publisher.needs_snapshot:
                break
        if self.syncs == before or not self._publisher.wait(_LONGEST_END):
            self._warn("the servers do not have the last sync; it is sent at a restart")

    def close(self) -> None:
        """End the thread."""
        self._publisher.close()


def _known_generation(file: Path) -> int:
    """Number of the generation that a trainer of this run began last; 0 before the first."""
    known = read_json(file) if file.exists() else 0
    if type(known) is not int or known < 0:
        raise InputError(f"{file}: {known!r:.40} is no number of a generation; use a new `out`")
    return known
