"""Train on a stream, sync servers and write snapshots, until the end of the stream or a signal."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessageLog, Position
from cowclip_merlin.online.new_columns import lacking_in
from cowclip_merlin.online.report import Values
from cowclip_merlin.online.service import Service, Timer
from cowclip_merlin.online.training.event_reader import WAIT, EventReader
from cowclip_merlin.online.training.recent_scores import LabelStretch, TargetScores
from cowclip_merlin.online.training.repeats import RepeatFilter
from cowclip_merlin.online.training.run_snapshots import RunSnapshots
from cowclip_merlin.online.training.server_sync import ServerSync
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.online.training.shards.dealt_messages import ConductorDecoder
from cowclip_merlin.online.training.shards.turns import (
    END,
    SAVE,
    STEP,
    About,
    Alone,
    Conductor,
    Start,
    Turn,
)
from cowclip_merlin.online.training.status_report import StatusReport, sync_info
from cowclip_merlin.online.training.step_journal import Step, StepJournal
from cowclip_merlin.online.training.steps.step_pipeline import StepPipeline
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.system.signals import Stopped
from cowclip_merlin.tables.snapshot import part_of

_PAUSE = 0.02  # seconds between two looks for a snapshot of several workers


class StreamTrainer:
    """One process of a training on a stream.

    Args:
        trainer: a new one, with `catch_up` of the settings.
        events: log of events.
        servers: log that servers follow; None for none.
        settings: of the stream.
        folder: of the run.
        log: for the lines that the user sees.
        start: is called with the time of the first event before a new run trains; None for none.
        team: tells other workers what to do; None: there are none.

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
        team: Conductor | None = None,
    ) -> None:
        self.trainer, self.settings, self.log, self.trained = trainer, settings, log, 0
        self._events, self._start = events, start
        self._batch_size = trainer.settings.run.batch_size
        self._scores = TargetScores(trainer.features.targets)
        self._service = Service(log, "training waits")
        self._stop = self._service.stop
        self._labels = LabelStretch(log.warning)
        self._pipeline = StepPipeline(trainer, self._scores.add)
        self._journal = StepJournal(folder / "steps")
        self._team = team or Alone()
        self._stored = RunSnapshots(folder, settings, self._team, log.warning)
        self._snapshots = self._stored.writer
        self._report = StatusReport(folder / "metrics.csv", self._service, self._scores)
        self._servers = servers and ServerSync(servers, trainer, settings, folder, log.warning)
        self._snapshot_timer = Timer(settings.snapshot_every)
        self._repeats: RepeatFilter | None = None
        if trainer.features.key and settings.repeats_window:
            self._repeats = RepeatFilter(
                settings.repeats_window, settings.repeats_keys, warn=log.warning
            )
        self._damaged = DamagedMessages(folder / "damaged.jsonl")
        self._decode = team and ConductorDecoder(team, trainer.features).decode
        self._reader = self._read_from(events.start())
        self._saved, self._factor = -1, 1
        self._positions: list[Position] = []  # of the snapshots that were begun

    def status(self) -> Values:
        """Return the numbers of the newest line, for Prometheus."""
        return self._service.newest

    def run(self) -> None:
        """Train until a signal comes, or with `until_end` until the log ends.

        Raises:
            InputError: an input is wrong, or the log has lost events.
            Diverged: the loss or a gradient is not finite.
            Stopped: after SIGINT or SIGTERM; a snapshot is written first.
        """
        try:
            with self._stop.catch_signals():
                resumed = bool(self._stored.numbers())
                self._resume() if resumed else self._begin()
                if not self._stop.signal_number:  # or what is on the disk is still the newest
                    self._train_on(resumed=resumed)
        finally:
            self._pipeline.close()
            self._snapshots.close()
            self._journal.close()
            if self._servers:
                self._servers.close()
        if self._stop.signal_number:
            raise Stopped(self._stop.signal_number)

    def _train_on(self, *, resumed: bool) -> None:
        """Train from here on until the end or a signal."""
        try:
            self._stored.copy(self._saved)
        except InputError as error:
            if not resumed:
                raise
            self.log.warning("%s; training goes on, and the next snapshot is copied", error)
        if self._servers:
            self._servers.begin(self._saved)
        self._service.begin(self.trained)
        self._service.run(self._go_on, self._write_report)
        self._finish()

    def _read_from(self, position: Position) -> EventReader:
        return EventReader(
            self._events,
            self.trainer.features,
            position,
            damaged=self._damaged,
            repeats=self._repeats,
            warn=self.log.warning,
            decode=self._decode,
        )

    def _begin(self) -> None:
        """Write the snapshot from which servers start."""
        first = None
        if self._start is not None and (first := self._first_time()) is None:
            return
        self._begin_together(first)
        if first is not None:
            self._start(first)
        self._save(wait=True)

    def _begin_together(self, first: int | None = None) -> None:
        """Tell the other workers where to begin."""
        self._team.begin(Start(self._reader.position, first, self._servers is not None))

    def _first_time(self) -> int | None:
        """The time of the first event; None after a signal."""
        self.log.info("waiting for the first event")
        reader = EventReader(
            self._events,
            self.trainer.features,
            self._reader.position,
            damaged=DamagedMessages(None),
            warn=self.log.warning,
        )
        while not self._stop.signal_number:
            if (step := reader.choose(1)) and (events := reader.take(step)) is not None:
                return int(events.times[0])
            if self.settings.until_end and reader.at_end():
                raise InputError(f"{self._events.name}: has no events; write some first")
        return None

    def _resume(self) -> None:
        """Go on from the newest snapshot, with the steps that were noted after it."""
        snapshot = self._stored.load_newest()
        if lacking := lacking_in(snapshot.extra, self.trainer.features):
            self._say_new(lacking)
        self.trainer.restore(part_of(snapshot.arrays, "trainer."), lacking=lacking)
        repeats = part_of(snapshot.arrays, "repeats.")
        if self._repeats is not None and repeats:
            self._repeats.restore(repeats)
        self._report.is_full = self.trainer.table.statistics().evicted > 0
        self.trained = self._saved = snapshot.number
        position = tuple(snapshot.extra["position"])
        if self.settings.on_restart == "skip":
            self._skip(position)
            return
        self.log.info("resumed after %s events", f"{self.trained:,}")
        self._reader = self._read_from(position)
        self._begin_together()
        for step in self._journal.after(snapshot.number):
            self._service.retry(lambda step=step: self._execute(step))
            if self._stop.signal_number:
                return
        self._journal.begin(snapshot.number, keep=self._stored.numbers())

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

    def _skip(self, position: Position) -> None:
        end = self._events.end()
        self._reader = self._read_from(end)
        self._begin_together()
        self._journal.forget()
        self._journal.begin(self._saved, keep=[])
        self.log.warning(
            "skipped %s events since the snapshot at %s, as --on-restart skip asks for",
            f"{end[0] - position[0]:,}",
            f"{self.trained:,}",
        )

    def _execute(self, step: Step) -> Events | None:
        """Train a step; return its events, if it has some.

        Raises:
            LogUnavailable: the log does not answer, and nothing has changed.
        """
        events = self._reader.take(step)
        count = 0 if events is None else len(events)
        self._team.say(Turn(STEP, count, step.factor, step.now, step.until))
        if events is not None:
            self._pipeline.submit(events, step.factor)
            self.trained += count
        return events

    def _ended(self) -> bool:
        signals = [each.signal_number for each in self._team.others if each.signal_number]
        self._stop.signal_number = self._stop.signal_number or next(iter(signals), None)
        if self._stop.signal_number:
            return True
        return self.settings.until_end and self._reader.at_end()

    def _go_on(self) -> bool:
        """Train a batch if there is one, and do what is due; False at the end."""
        if self._ended():
            return False
        if not self._reader.pending:  # a batch keeps its size until it is full
            large = self._batch_size * self.settings.catch_up
            self._factor = self.settings.catch_up if self._reader.lag() >= large else 1
        self._train(max_wait=self.settings.max_wait)
        self._team.keep_in_touch()
        if self._servers and self._servers.due():
            self._sync()
        self._save_if_due()
        return True

    def _train(self, *, max_wait: float = 0.0, wait: float = WAIT, rest: bool = False) -> None:
        """Choose a step if there is one, note it, and train it."""
        size = self._batch_size * self._factor
        step = self._reader.choose(size, self._factor, max_wait=max_wait, wait=wait, rest=rest)
        if step is not None:
            self._journal.note(step)
            if (events := self._execute(step)) is not None:
                self._labels.add(events.known_first_labels)

    def _sync(self) -> None:
        self._pipeline.wait()
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
        own = About.of(None, self.trainer.table.statistics())
        return About.sum([own, *self._team.others])

    def _save_if_due(self) -> None:
        if (number := self._snapshots.finished()) is not None:
            self._announce(number)
        if self._snapshots.busy or self.trained == self._saved:
            return
        if self._is_snapshot_due():
            self._save()
            self._snapshot_timer.reset()

    def _is_snapshot_due(self) -> bool:
        if self.settings.snapshot_every and self._snapshot_timer.due():
            return True
        return self._servers is not None and self._servers.asks_for_snapshot()

    def _save(self, *, wait: bool = False) -> None:
        """Begin to write a snapshot; it ends with the last step."""
        self._pipeline.wait()
        self.trainer.check_loss()
        arrays = {f"trainer.{name}": x for name, x in self.trainer.state().items()}
        if self._repeats is not None:
            arrays |= {f"repeats.{name}": x for name, x in self._repeats.state().items()}
        is_first = self._saved < 0  # servers begin with it
        if self._servers and not is_first:
            self._servers.snapshot_begins(self.trained)
        self._team.say(Turn(SAVE, self.trained, factor=int(not is_first)))
        features = self.trainer.features
        self._stored.begin(self.trained, arrays, self._reader.position, features)
        self._positions = [*self._positions, self._reader.position]
        self._positions = self._positions[-self.settings.keep_snapshots :]
        self._saved = self.trained
        if wait:
            self._wait_for_snapshot()
        self._journal.begin(self._saved, keep=self._stored.numbers())

    def _wait_for_snapshot(self) -> int | None:
        """Wait until a snapshot that was begun is on the disk; return its number.

        Other workers are asked meanwhile: one that cannot write its part ends.
        """
        while self._team.size > 1 and self._snapshots.is_writing:
            self._team.keep_in_touch()
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

    def _finish(self) -> None:
        """Train what is left of a batch, sync for the last time, and write a snapshot."""
        self._train(wait=0, rest=True)
        if (number := self._wait_for_snapshot()) is not None:
            self._announce(number)
        if self.trained > self._saved:
            self._save(wait=True)
            self._announce(self._saved)
        if self._servers:
            self._servers.end(self._sync)
        self._team.say(Turn(END))
        self._team.say_sent(self.log)
        self._write_report()

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
