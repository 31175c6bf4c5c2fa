"""A worker that trains what worker 0 says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.logs.message_log import MessageLog
from cowclip_merlin.online.new_columns import lacking_in
from cowclip_merlin.online.sync.served_changes import TableChanges
from cowclip_merlin.online.training.event_reader import EventReader
from cowclip_merlin.online.training.repeats import RepeatFilter
from cowclip_merlin.online.training.run_snapshots import SNAPSHOTS, TABLE
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.online.training.shards.changes_of_all import gather_changes
from cowclip_merlin.online.training.shards.dealt_messages import DealtDecoder
from cowclip_merlin.online.training.shards.shard_trainer import ShardTrainer
from cowclip_merlin.online.training.shards.turns import (
    ARRIVED,
    COLLECT,
    END,
    KNOWN,
    READ,
    SAVE,
    STEP,
    About,
    Start,
    Turn,
    hear,
    hear_start,
    load_together,
)
from cowclip_merlin.online.training.step_journal import Step
from cowclip_merlin.online.training.steps.step_pipeline import StepPipeline
from cowclip_merlin.system.signals import GracefulStop, Stopped
from cowclip_merlin.tables.snapshot import Snapshot, load_part, part_of
from cowclip_merlin.tables.snapshot_writer import SnapshotWriter


class Follower:
    """Reads the messages that worker 0 reads, trains its part, and writes its part of snapshots.

    Args:
        trainer: a new one, with `catch_up` of the settings.
        events: log of events.
        settings: of the stream.
        folder: of the run.
        start: is called with the time of the first event before a new run trains; None for none.
        warn: is called with a line if the log does not answer.
    """

    def __init__(
        self,
        trainer: ShardTrainer,
        events: MessageLog,
        settings: StreamSettings,
        folder: Path,
        *,
        start: Callable[[int], None] | None,
        warn: Callable[[str], None],
    ) -> None:
        self.trainer, self.group, self._start, self._warn = trainer, trainer.group, start, warn
        self._events, self._folder, self._stop = events, folder / SNAPSHOTS, GracefulStop()
        self._pipeline = StepPipeline(trainer, lambda *_: None)
        place = {"rank": self.group.rank, "workers": self.group.size}
        self._snapshots = SnapshotWriter(self._folder, **place)
        self._repeats: RepeatFilter | None = None
        if trainer.features.key and settings.repeats_window:
            self._repeats = RepeatFilter(settings.repeats_window, settings.repeats_keys)
        self._changes: TableChanges | None = None

    def run(self) -> None:
        """Train until worker 0 ends.

        Raises:
            InputError: the log or a snapshot is not what worker 0 has.
            Diverged: a gradient is not finite.
            Stopped: after SIGINT or SIGTERM.
        """
        try:
            with self._stop.catch_signals():
                self._reader = self._begin()
                while (turn := self._hear()).kind != END:
                    self._do(turn)
        finally:
            self._pipeline.close()
            self._snapshots.close()
        if self._stop.signal_number:
            raise Stopped(self._stop.signal_number)

    def _hear(self) -> Turn:
        """Hear what worker 0 says; before that, see whether the last snapshot failed.

        Worker 0 waits for this worker's part of it, and says something meanwhile.
        """
        self._snapshots.finished()
        table, changes = self.trainer.table.statistics(), self._changes
        breaks = 0 if changes is None else changes.breaks
        return hear(self.group, About.of(self._stop.signal_number, table, breaks))

    def _begin(self) -> EventReader:
        """Load the snapshot that worker 0 loads, and begin where it begins."""
        snapshot: Snapshot | None = None
        while not isinstance(told := hear_start(self.group), Start):
            snapshot = self._load(told)
        if told.servers:
            self._changes = TableChanges(self.trainer.table)
        if told.first is not None and self._start is not None:
            self._start(told.first)
        if snapshot is not None:
            lacking = lacking_in(snapshot.extra, self.trainer.features)
            self.trainer.restore(part_of(snapshot.arrays, "trainer."), lacking=lacking)
            repeats = part_of(snapshot.arrays, "repeats.")
            if self._repeats is not None and repeats:
                self._repeats.restore(repeats)
        return self._read_from(told)

    def _load(self, number: int) -> Snapshot | None:
        rank, size = self.group.rank, self.group.size
        try:
            return load_together(
                self.group, lambda: load_part(self._folder, number, TABLE, rank=rank, size=size)
            )
        except InputError as error:  # worker 0 says which one comes next
            self._warn(str(error))
            return None

    def _read_from(self, start: Start) -> EventReader:
        return EventReader(
            self._events,
            self.trainer.features,
            start.position,
            damaged=DamagedMessages(None),
            repeats=self._repeats,
            warn=self._warn,
            decode=DealtDecoder(self.group, self.trainer.features).decode,
        )

    def _do(self, turn: Turn) -> None:
        if turn.kind == READ:
            self._reader.read_until(turn.until)
        elif turn.kind == STEP:
            self._execute(turn)
        elif turn.kind == SAVE:
            self._save(turn)
        elif self._changes is not None:
            self._serve(turn, self._changes)

    def _execute(self, turn: Turn) -> None:
        """Train a step, whose messages were read before."""
        events = self._reader.take(Step(turn.until, turn.factor, turn.now))
        if turn.number != (0 if events is None else len(events)):
            raise RuntimeError(f"{self.group}: has read other events than worker 0")
        if events is not None:
            self._pipeline.submit(events, turn.factor)

    def _save(self, turn: Turn) -> None:
        self._pipeline.wait()
        self._snapshots.finished(wait=True)
        if self._changes is not None and turn.factor:
            self._changes.snapshot_begins(turn.number)
        state = {f"{TABLE.prefix}{name}": x for name, x in self.trainer.table.state().items()}
        self._snapshots.begin(turn.number, state, {})

    def _serve(self, turn: Turn, changes: TableChanges) -> None:
        """Collect changes for the servers, or forget them."""
        if turn.kind == COLLECT:
            self._pipeline.wait()
            gather_changes(self.group, changes.collect(), self.trainer.table.num_fields)
        elif turn.kind == ARRIVED:
            changes.arrived()
        elif turn.kind == KNOWN:
            changes.snapshot_ends(turn.number)
