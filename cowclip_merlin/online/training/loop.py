"""Train on a stream, sync servers and write snapshots, until the end of the stream or a signal."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessageLog, Position
from cowclip_merlin.online.new_columns import lacking_in
from cowclip_merlin.online.report import Values
from cowclip_merlin.online.service import Service, Timer
from cowclip_merlin.online.training.recent_scores import LabelStretch, TargetScores
from cowclip_merlin.online.training.repeats import RepeatFilter
from cowclip_merlin.online.training.run_snapshots import RunSnapshots
from cowclip_merlin.online.training.server_sync import ServerSync
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.online.training.status_report import StatusReport, sync_info
from cowclip_merlin.online.training.steps import (
    LOOKS,
    WAIT,
    Do,
    EventReader,
    Step,
    StepJournal,
)
from cowclip_merlin.online.training.trainer import OnlineTrainer, StepPipeline
from cowclip_merlin.online.training.workers import About, agree, refuse_other_events
from cowclip_merlin.system.signals import Stopped
from cowclip_merlin.tables.snapshot import Snapshot, part_of
from cowclip_merlin.workers import Workers

_PAUSE = 0.02  # seconds between two looks for a snapshot of several workers
_SILENCE = 0.5  # seconds after which worker 0 asks whether a signal has reached another worker


class StreamTrainer:
    """One process of a training on a stream.

    Every worker runs this program. Worker 0 decides the steps, and all execute them. So does a
    restart: it executes the noted steps, and then those that it decides.

    Args:
        trainer: a new one, with `catch_up` of the settings.
        events: log of events.
        servers: log that servers follow, on worker 0; None for none.
        settings: of the stream.
        folder: of the run.
        log: for the lines that the user sees.
        start: is called with the time of the first event before a new run trains; None for none.
        group: this process and the other workers; None for one.
        is_served: whether servers follow worker 0; None: if `servers` is given.

    Attributes:
        trained: events so far, in all processes of this run.
    """

    def __init__(
        self,
        trainer: OnlineTrainer,
        events: MessageLog,
        servers: MessageLog | None,
        settings: StreamSettings,
        folder: Path,
        log: logging.Logger,
        *,
        start: Callable[[int], None] | None = None,
        group: Workers | None = None,
        is_served: bool | None = None,
    ) -> None:
        self.trainer, self.settings, self.log, self.trained = trainer, settings, log, 0
        self._events, self._start, self._group = events, start, group
        self._decides = group is None or group.is_first
        self._batch_size = trainer.settings.run.batch_size
        self._scores = TargetScores(trainer.features.targets)
        self._service = Service(log, "training waits")
        self._stop = self._service.stop
        self._labels = LabelStretch(log.warning)
        self._pipeline = StepPipeline(trainer, self._scores.add)
        self._journal = StepJournal(folder / "steps")
        self._stored = RunSnapshots(folder, settings, group, log.warning)
        self._snapshots = self._stored.writer
        self._report = StatusReport(folder / "metrics.csv", self._service, self._scores)
        is_served = servers is not None if is_served is None else is_served
        self._changes = trainer.served_changes() if is_served else None
        self._servers: ServerSync | None = None
        if servers is not None:
            self._servers = ServerSync(
                servers, trainer, self._changes, settings, folder, log.warning
            )
        self._snapshot_timer = Timer(settings.snapshot_every)
        self._repeats: RepeatFilter | None = None
        if trainer.features.key and settings.repeats_window:
            self._repeats = RepeatFilter(
                settings.repeats_window, settings.repeats_keys, warn=log.warning
            )
        self._damaged = DamagedMessages(folder / "damaged.jsonl" if self._decides else None)
        self._reader: EventReader | None = None  # from the first step on
        self._saved, self._trained_before = -1, 0  # as of the last snapshot, and at the start
        self._factor, self._ahead = 1, self._batch_size
        self._positions: list[Position] = []  # of the snapshots that were begun
        self._others: list[About] = []  # what the other workers told
        self._agreed_at = 0.0

    def status(self) -> Values:
        """Return the numbers of the newest line, for Prometheus."""
        return self._service.newest

    def run(self) -> None:
        """Train until a signal comes, or with `until_end` until the log ends.

        Raises:
            InputError: an input is wrong, the log has lost events, or all that it has are damaged.
            Diverged: the loss or a gradient is not finite.
            Stopped: after SIGINT or SIGTERM; a snapshot is written first.
        """
        try:
            with self._stop.catch_signals():
                snapshot = self._stored.load_newest()
                if snapshot is not None:
                    self._restore(snapshot)
                decided = self._decide(snapshot) if self._decides else itertools.repeat(None)
                for step in map(self._agreed, decided):
                    if step.do == Do.END:
                        break
                    self._execute(step)
        finally:
            self._pipeline.close()
            self._snapshots.close()
            self._journal.close()
            if self._servers:
                self._servers.close()
        if self._stop.signal_number:
            raise Stopped(self._stop.signal_number)
        if not self.trained and self._damaged.count:
            raise InputError(
                f"{self._events.name}: none of its {self._damaged.count:,} messages is an event of "
                f"the features file; the newest: {self._damaged.newest}"
            )

    def _restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        if lacking := lacking_in(snapshot.extra, self.trainer.features):
            self._say_new(lacking)
        self.trainer.restore(part_of(snapshot.arrays, "trainer."), lacking=lacking)
        repeats = part_of(snapshot.arrays, "repeats.")
        if self._repeats is not None and repeats:
            self._repeats.restore(repeats)
        self._report.is_full = self.trainer.table.statistics().evicted > 0
        self.trained = self._saved = self._trained_before = snapshot.number

    def _say_new(self, lacking: Sequence[str]) -> None:
        names = ", ".join(lacking)
        self.log.info("new in the model: %s; no rows yet, and dense weights of 0", names)
        for column in self.trainer.features.categorical:
            if column.name in lacking and column.table:
                self.log.warning(
                    "%r reads the trained rows of %r at once, so predictions may change",
                    column.name,
                    column.table,
                )

    def _agreed(self, step: Step | None) -> Step:
        """Return the step of worker 0 on all workers, which tell each other of themselves."""
        if self._group is None:
            return step
        if not self._decides:
            self._snapshots.finished()  # raises what its thread raised: worker 0 waits for the part
            if self._reader is not None:
                self._reader.read_ahead(self._ahead)
        step, self._others = agree(self._group, step, self._about())
        self._agreed_at = time.monotonic()
        if self._changes is not None:
            self._changes.breaks_of_others = sum(other.breaks for other in self._others)
        return step

    def _about(self) -> About:
        return About.of(
            self.trainer.table.statistics(),
            signal_number=self._stop.signal_number or 0,
            breaks=self._changes.own_breaks if self._changes is not None else 0,
        )

    def _execute(self, step: Step) -> None:
        """Do what all workers do."""
        if step.do == Do.BEGIN:
            self._reader = self._read_from(step.until)
            if self._start is not None and step.number >= 0:
                self._start(step.number)
        elif step.do == Do.TRAIN:
            self._train(step)
        elif step.do == Do.SAVE:
            self._save()
        elif step.do == Do.SYNC:
            self._sync()
        elif step.do == Do.KNOWN and self._servers is not None:
            self._servers.tell(step.number)
        elif step.do == Do.KNOWN:
            self._changes.snapshot_ends(step.number)

    def _read_from(self, position: Position) -> EventReader:
        return EventReader(
            self._events,
            self.trainer.features,
            position,
            damaged=self._damaged,
            repeats=self._repeats,
            warn=self.log.warning,
            looks=1 if self._decides else LOOKS,
        )

    def _train(self, step: Step) -> None:
        """Train on the events of a step, if it has some."""
        events = self._take(step)
        refuse_other_events(self._group, 0 if events is None else len(events))
        if events is not None:
            self._pipeline.submit(events, step.factor)
            self.trained += len(events)
            self._labels.add(events.known_first_labels)
        self._ahead = step.factor * self._batch_size

    def _take(self, step: Step) -> Events | None:
        """Return the events of a step, as soon as the log answers; nothing has changed before.

        Raises:
            Stopped: a signal came while it did not.
        """
        while True:
            try:
                events = self._reader.take(step)
            except LogUnavailable as error:
                if self._stop.signal_number:
                    raise Stopped(self._stop.signal_number) from None
                self._service.retry.wait(error)
            else:
                self._service.retry.answered()
                return events

    def _sync(self) -> None:
        """Send the changes of all workers to servers."""
        self._pipeline.wait()
        if self._servers is None:  # worker 0 sends them, and all before has arrived
            self._changes.arrived()
            self._changes.collect()
            return
        info = sync_info(
            trained=self.trained,
            position=self._reader.position,
            lag=self._reader.lag(),
            clock=self.trainer.table.clock,
            scores=self._scores,
            table=self._table(),
        )
        self._servers.sync(info)

    def _table(self) -> About:
        """Return the numbers of the table, of all workers."""
        return About.sum([self._about(), *self._others])

    def _save(self) -> None:
        """Begin to write a snapshot, which ends with the last step."""
        self._pipeline.wait()
        self.trainer.check_loss()
        arrays = {f"trainer.{name}": x for name, x in self.trainer.state().items()}
        if self._repeats is not None:
            arrays |= {f"repeats.{name}": x for name, x in self._repeats.state().items()}
        if self._saved >= 0:  # servers begin with the first one
            if self._servers is not None:
                self._servers.snapshot_begins(self.trained)
            elif self._changes is not None:
                self._changes.snapshot_begins(self.trained)
        features = self.trainer.features
        self._stored.begin(self.trained, arrays, self._reader.position, features)
        self._positions = [*self._positions, self._reader.position]
        self._positions = self._positions[-self.settings.keep_snapshots :]
        self._saved = self.trained

    # What follows, only worker 0 does: it decides.

    def _decide(self, snapshot: Snapshot | None) -> Iterator[Step]:
        """Yield each step; it is executed before the next one is decided.

        Args:
            snapshot: that was loaded; None in a new run.
        """
        yield from self._begin() if snapshot is None else self._resume(snapshot)
        if not self._stop.signal_number:  # or what is on the disk is still the newest
            self._begin_to_tell(resumed=snapshot is not None)
            while not self._ended():
                yield from self._go_on()
            yield from self._finish()
            self._say_sent()
            self._write_report()
        yield self._step(Do.END)

    def _step(self, do: Do, number: int = -1) -> Step:
        """Return a step without messages."""
        position = self._reader.position if self._reader is not None else ()
        return Step(position, do=do, number=number)

    def _begin(self) -> Iterator[Step]:
        """Begin a new run, and write the snapshot from which servers start."""
        position = self._events.start()
        first = -1 if self._start is None else self._first_time(position)
        if first is None:
            return
        yield Step(position, do=Do.BEGIN, number=first)
        yield from self._save_now(wait=True)

    def _first_time(self, position: Position) -> int | None:
        """The time of the first event; None after a signal."""
        self.log.info("waiting for the first event")
        reader = EventReader(
            self._events,
            self.trainer.features,
            position,
            damaged=DamagedMessages(None),
            warn=self.log.warning,
        )
        while not self._stop.signal_number:
            if (step := reader.choose(1)) and (events := reader.take(step)) is not None:
                return int(events.times[0])
            if self.settings.until_end and reader.at_end():
                raise InputError(f"{self._events.name}: has no events; write some first")
        return None

    def _resume(self, snapshot: Snapshot) -> Iterator[Step]:
        """Go on from a snapshot, with the steps that were noted after it."""
        position = tuple(snapshot.extra["position"])
        if self.settings.on_restart == "skip":
            yield from self._skip(position)
            return
        self.log.info("resumed after %s events", f"{self.trained:,}")
        yield Step(position, do=Do.BEGIN)
        for step in self._journal.after(snapshot.number):
            yield step
            if self._stop.signal_number:
                return
        self._journal.begin(snapshot.number, keep=self._stored.numbers())

    def _skip(self, position: Position) -> Iterator[Step]:
        end = self._events.end()
        yield Step(end, do=Do.BEGIN)
        self._journal.forget()
        self._journal.begin(self._saved, keep=[])
        self.log.warning(
            "skipped %s events since the snapshot at %s, as --on-restart skip asks for",
            f"{end[0] - position[0]:,}",
            f"{self.trained:,}",
        )

    def _begin_to_tell(self, *, resumed: bool) -> None:
        """Copy the newest snapshot, and tell servers of it."""
        try:
            self._stored.copy(self._saved)
        except InputError as error:
            if not resumed:
                raise
            self.log.warning("%s; training goes on, and the next snapshot is copied", error)
        if self._servers:
            self._servers.begin(self._saved)
        self._service.begin(self.trained)

    def _ended(self) -> bool:
        signals = [other.signal_number for other in self._others if other.signal_number]
        self._stop.signal_number = self._stop.signal_number or next(iter(signals), None)
        if self._stop.signal_number:
            return True
        return self.settings.until_end and self._reader.at_end()

    def _go_on(self) -> Iterator[Step]:
        """Train a batch if there is one, and do what is due."""
        if not self._reader.pending:  # a batch keeps its size until it is full
            large = self._batch_size * self.settings.catch_up
            self._factor = self.settings.catch_up if self._reader.lag() >= large else 1
        yield from self._chosen(max_wait=self.settings.max_wait)
        yield from self._heard()
        if self._servers and (due := self._servers.due()):
            yield self._step(*due)
        yield from self._save_if_due()
        if self._service.is_line_due:
            self._write_report()

    def _chosen(
        self, *, max_wait: float = 0.0, wait: float = WAIT, rest: bool = False
    ) -> Iterator[Step]:
        """Choose a step if there is one, and note it."""
        size = self._batch_size * self._factor
        step = self._reader.choose(size, self._factor, max_wait=max_wait, wait=wait, rest=rest)
        if step is not None:
            self._journal.note(step)
            yield step

    def _heard(self) -> Iterator[Step]:
        """Hear from the other workers, if the last step was some time ago."""
        if self._group is not None and time.monotonic() - self._agreed_at > _SILENCE:
            yield self._step(Do.HEAR)

    def _save_if_due(self) -> Iterator[Step]:
        if (number := self._snapshots.finished()) is not None:
            self._announce(number)
        if self._snapshots.busy or self.trained == self._saved:
            return
        if self._is_snapshot_due():
            yield from self._save_now()
            self._snapshot_timer.reset()

    def _is_snapshot_due(self) -> bool:
        if self.settings.snapshot_every and self._snapshot_timer.due():
            return True
        return self._servers is not None and self._servers.asks_for_snapshot()

    def _save_now(self, *, wait: bool = False) -> Iterator[Step]:
        """Save, and note the next steps after this snapshot."""
        yield self._step(Do.SAVE)
        if wait:
            yield from self._wait_for_snapshot()
        self._journal.begin(self._saved, keep=self._stored.numbers())

    def _wait_for_snapshot(self) -> Generator[Step, None, int | None]:
        """Wait until a snapshot that was begun is on the disk; return its number.

        Other workers are asked meanwhile: one that cannot write its part ends.
        """
        while self._group is not None and self._snapshots.is_writing:
            yield from self._heard()
            time.sleep(_PAUSE)
        return self._snapshots.finished(wait=True)

    def _announce(self, number: int) -> None:
        """Tell servers of a snapshot that is on the disk, and trim the log of events."""
        if (problem := self._snapshots.problem) is not None:
            self.log.warning("%s; servers are not told of snapshot %s", problem, number)
            if self._servers:
                self._servers.snapshot_failed(number)
        elif self._servers:
            self._servers.snapshot_ends(number)
        if self.settings.trim and len(self._positions) == self.settings.keep_snapshots:
            try:
                self._events.trim(self._positions[0])
            except (InputError, LogUnavailable) as error:  # with the next snapshot, perhaps
                self.log.warning("%s; nothing is trimmed", error)

    def _finish(self) -> Iterator[Step]:
        """Train what is left of a batch, write a snapshot, and sync for the last time."""
        yield from self._chosen(wait=0, rest=True)
        if (number := (yield from self._wait_for_snapshot())) is not None:
            self._announce(number)
        if self.trained > self._saved:
            yield from self._save_now(wait=True)
            self._announce(self._saved)
        for due in self._servers.last() if self._servers else ():
            yield self._step(*due)

    def _say_sent(self) -> None:
        """Say how many bytes of training this worker has sent."""
        if self._group is None:
            return
        sent, events = self._group.traffic.sent, max(self.trained - self._trained_before, 1)
        self.log.info(
            "sent %.3f MB to %d other workers, %.0f bytes per event",
            sent / 1e6,
            self._group.size - 1,
            sent / events,
        )

    def _write_report(self) -> None:
        self.trainer.check_loss()
        table, rates = self._table(), self.trainer.learning_rates
        self._report.write(
            {
                "trained": self.trained,
                "lag": self._reader.lag(),
                "batch_factor": self._factor,
                "event_time": self.trainer.table.clock,
                "rows": table.rows,
                "expired": table.expired,
                "evicted": table.evicted,
                "repeats": self._repeats.dropped if self._repeats else 0,
                "repeats_reach": self._repeats.reach if self._repeats else None,
                "damaged": self._damaged.count,
                "syncs": self._servers.syncs if self._servers else 0,
                **dict(zip(("embedding_lr", "dense_lr"), rates, strict=True)),
            },
            reason=self._damaged.newest,
            snapshot_time=self._stored.newest_time(),
        )
