"""Replay a log in time order: score each batch with serving copies, then train on it.

This is Algorithm 1 of Monolith (Liu et al., arXiv 2209.07663, section 4.2), with all sync
intervals in one run: the training is the same for each of them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.replaying.replay_results import (
    DAY,
    LABEL,
    TIME,
    WEIGHT,
    DayReport,
    PredictionFiles,
)
from cowclip_merlin.online.replaying.settings import ReplaySettings
from cowclip_merlin.online.served_model import DenseScorer, ServedModel, Version
from cowclip_merlin.online.settings import FULL
from cowclip_merlin.online.sync.publisher import sync_parts
from cowclip_merlin.online.sync.served_changes import TableChanges
from cowclip_merlin.online.sync.sync_message import SyncMessage
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.system.console import progress
from cowclip_merlin.system.machine import resident_megabytes
from cowclip_merlin.system.signals import GracefulStop, Stopped
from cowclip_merlin.tables.serving_table import ServingTable
from cowclip_merlin.tables.snapshot import load_snapshot, numbers, part_of, save_snapshot
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    from tqdm import tqdm

    from cowclip_merlin.online.events.events import Events


class BatchReader:
    """Reads batches in time order. Batches depend on the position in the log only.

    Args:
        pieces: the log, any number of events at a time.
        batch_size: events in a batch; the last one before a given time, or of the log, may be
            smaller.
        skip: events to skip at the start.
    """

    def __init__(self, pieces: Iterable[Events], batch_size: int, *, skip: int = 0) -> None:
        self._pieces, self._batch_size, self._skip = iter(pieces), batch_size, skip
        self._waiting: list[Events] = []  # events that were read and are in no batch yet

    def first_time(self) -> int | None:
        """Return the time of the next event in whole seconds; None at the end of the log."""
        if not self._waiting and not self._read():
            return None
        return int(self._waiting[0].times[0])

    def batches(self, before: int | None = None) -> Iterator[Events]:
        """Yield the batches of all events before a time, or of all events."""
        while batch := self._next_batch(before):
            yield batch

    def _next_batch(self, before: int | None) -> Events | None:
        while sum(map(len, self._waiting)) < self._batch_size and self._read():
            pass
        if not self._waiting:
            return None
        waiting = self._waiting[0]
        if len(self._waiting) > 1:  # each batch would otherwise copy all that is waiting
            waiting = type(waiting).concatenate(self._waiting)
        size = min(self._batch_size, len(waiting))
        if before is not None:
            size = min(size, int(np.searchsorted(waiting.times, before)))
        rest = waiting.filter(slice(size, None))
        self._waiting = [rest] if len(rest) else []
        return waiting.filter(slice(size)) if size else None

    def _read(self) -> bool:
        """Read a piece; return whether there was one."""
        for piece in self._pieces:
            skipped = min(self._skip, len(piece))
            self._skip -= skipped
            if skipped < len(piece):
                self._waiting.append(piece.filter(slice(skipped, None)))
                return True
        return False


class ServingCopy:
    """What a server would have: the model as of the last sync.

    Args:
        trainer: whose changes the copy takes over at each sync, between `start` and `stop`.
        every: seconds of event time from one sync to the next; None: only the first one.

    Attributes:
        model: as a server has it.
        next_sync: when the copy is synced next; None: never.
    """

    def __init__(self, trainer: OnlineTrainer, every: int | None = None) -> None:
        self._trainer, self.every = trainer, every
        self._changes: TableChanges | None = None
        self.next_sync: int | None = None
        table = ServingTable(
            trainer.table.num_fields,
            trainer.table.capacity,
            [table.shape[1] for table in trainer.tables],
            field_of_column=trainer.table.field_of_column,
        )
        scorer = DenseScorer(trainer.settings.run, trainer.features)
        self.model = ServedModel(trainer.features, table, scorer, Version(0, 0, {}))

    def start(self) -> None:
        """Follow the trainer from now on: its table remembers changes for this copy."""
        # Without a bound: a server could load a snapshot when too many ids are gone.
        self._changes = TableChanges(self._trainer.table, bounded=False)

    def stop(self) -> None:
        """Follow the trainer no more; the copy stays as it is."""
        self._changes.close()
        self._changes = None

    def begin(self, now: int) -> None:
        """Start, and sync for the first time."""
        self.start()
        self.sync()
        if self.every is None:
            self.stop()
        else:
            self.next_sync = now + self.every

    def sync_if_due(self, now: int) -> None:
        """Sync if the training has come to the time of a sync."""
        if self.next_sync is not None and now >= self.next_sync:
            self.sync()
            self.next_sync += (now - self.next_sync) // self.every * self.every + self.every

    def sync(self) -> None:
        """Take over the rows that changed since the last sync, and all dense weights."""
        for part in sync_parts(self._trainer, self._changes.collect()):
            self.model.apply(SyncMessage(generation=0, seq=self.model.seq + 1, **part._asdict()))
        self._changes.arrived()

    def predict(self, events: Events) -> Array:
        """Return click probabilities of events, float32 [b]."""
        return self.model.predict(events).probabilities


class Replay:
    """One replay of a log in a folder, with snapshots.

    Args:
        trainer: a new one.
        log_events: the log in pieces, read once from its start.
        settings: of the replay.
        folder: for predictions and snapshots.
        log: for the lines that the user sees.
        start: called with the time of the first event, before a new replay trains.

    Attributes:
        trained: events trained.
        seconds: of work so far, in all processes that worked on this replay.
    """

    def __init__(
        self,
        trainer: OnlineTrainer,
        log_events: Iterable[Events],
        settings: ReplaySettings,
        folder: Path,
        log: logging.Logger,
        start: Callable[[int], None] | None = None,
    ) -> None:
        self._start = start
        self.trainer, self.settings, self.log = trainer, settings, log
        self._log_events, self._snapshots = log_events, folder / "snapshots"
        self._copies = {
            name: ServingCopy(trainer, every)
            for name, every in zip(settings.sync, settings.intervals, strict=True)
        }
        self.predictions = PredictionFiles(
            folder / "predictions", settings.sync, weighted=trainer.features.weight is not None
        )
        self.trained, self.seconds = 0, 0.0
        self._online_from: int | None = None  # time of the first event to score
        self._is_online = False
        self._stop = GracefulStop()
        self._saved = 0.0

    @property
    def resumable(self) -> bool:
        """Whether there is a snapshot."""
        return bool(numbers(self._snapshots))

    def resume(self) -> None:
        """Go on from the newest snapshot; without one, from the start.

        Raises:
            InputError: the snapshot is damaged, or of another model.
        """
        if not self.resumable:
            self.predictions.cut(0)
            return
        newest = max(numbers(self._snapshots))
        try:
            snapshot = load_snapshot(self._snapshots, newest)
        except InputError as error:
            raise InputError(
                f"{error}: remove {self._snapshots / str(newest)} to go on from the one before"
            ) from None
        arrays, extra = snapshot.arrays, snapshot.extra
        # Before the first event is scored, the copies are empty and were not saved.
        copies = self._copies if extra["is_online"] else {}
        for copy in copies.values():  # as they started, so that each gets its own changes back
            if copy.every is not None:
                copy.start()
        self.trainer.restore(part_of(arrays, "trainer."))
        for (name, copy), next_sync in zip(copies.items(), extra["next_sync"]):
            copy.next_sync = next_sync
            copy.model.restore(part_of(arrays, f"copy.{name}."))
        self.predictions.cut(extra["scored"])
        self.trained, self._online_from = snapshot.number, extra["online_from"]
        self._is_online, self.seconds = extra["is_online"], extra["seconds"]
        self.log.info("resumed after %s events", f"{self.trained:,}")

    def run(self) -> None:
        """Train on the whole log, and score what comes after the first days.

        Raises:
            InputError: the log ends before the first event is scored.
            Stopped: after SIGINT or SIGTERM; a snapshot is written first.
        """
        size = self.trainer.settings.run.batch_size
        reader = BatchReader(self._log_events, size, skip=self.trained)
        self._days = DayReport(self.predictions, self.settings.sync, self.log)
        if self._online_from is None:
            first = reader.first_time()
            self._online_from = math.ceil(first + self.settings.batch_days * DAY)
            if self._start is not None:
                self._start(first)
        self._saved = time.perf_counter()
        started = self._saved - self.seconds
        with self._stop.catch_signals(), self._progress_bar() as bar:
            if not self._is_online:
                self._train_all(reader, started, bar)
            for batch in reader.batches():
                self._score(batch)
                self._train(batch, started, bar)
        self.seconds = time.perf_counter() - started
        self._days.close(self.trainer.table.num_rows)
        if not self.predictions.rows:
            raise InputError(
                f"the log ends within the first {self.settings.batch_days:g} days, so no event "
                "is scored; use a smaller `batch_days`"
            )
        self._warn_of_long_batches()
        if evicted := self.trainer.table.statistics().evicted:
            self.log.warning("%s ids have lost their rows; %s", f"{evicted:,}", FULL)
        if self.trained > max(numbers(self._snapshots), default=-1):
            self._save()

    def _warn_of_long_batches(self) -> None:
        """Copies cannot be synced more often than once in a batch."""
        times, batch = self.predictions.read([TIME])[TIME], self.trainer.settings.run.batch_size
        seconds = int(times[-1] - times[0]) * min(1.0, batch / len(times))
        fast = {k: x.every for k, x in self._copies.items() if x.every and x.every < seconds}
        if fast:
            most = int(batch * min(fast.values()) / seconds)
            self.log.warning(
                "a batch spans %.0f s on average, so the copies synced every %s were synced before "
                "each batch and have equal scores; use a --batch-size of %d or less",
                seconds,
                " and ".join(fast),
                max(most, 1),
            )

    def _train_all(self, reader: BatchReader, started: float, bar: tqdm) -> None:
        """Train the events before the first one to score, and start the serving copies."""
        for batch in reader.batches(before=self._online_from):
            self._train(batch, started, bar)
        for copy in self._copies.values():
            copy.begin(self._online_from)
        self._is_online = True

    def _score(self, batch: Events) -> None:
        now = int(batch.times[-1])
        for copy in self._copies.values():
            copy.sync_if_due(now)
        scores = {name: copy.predict(batch) for name, copy in self._copies.items()}
        known = {LABEL: batch.labels, TIME: batch.times, WEIGHT: batch.weights}
        self.predictions.append(known | scores)
        self._days.update(now, self.trainer.table.num_rows)

    def _train(self, batch: Events, started: float, bar: tqdm) -> None:
        self.trainer.train(batch)
        self.trained += len(batch)
        bar.update(len(batch))
        if not bar.disable:  # asking for the memory is a system call
            ids, memory = self.trainer.table.num_rows, resident_megabytes()
            bar.set_postfix_str(f"{ids:,} ids, {memory:,.0f} MB", refresh=False)
        every, now = self.settings.snapshot_every, time.perf_counter()
        if self._stop.signal_number or (every and now - self._saved >= every):
            self.seconds = now - started
            self._save()

    def _save(self) -> None:
        self.trainer.check_loss()
        self.predictions.flush()
        arrays = {f"trainer.{name}": x for name, x in self.trainer.state().items()}
        for of, copy in self._copies.items() if self._is_online else ():
            arrays |= {f"copy.{of}.{name}": x for name, x in copy.model.state().items()}
        extra = {
            "next_sync": [copy.next_sync for copy in self._copies.values()],
            "scored": self.predictions.rows,
            "online_from": self._online_from,
            "is_online": self._is_online,
            "seconds": self.seconds,
        }
        save_snapshot(self._snapshots, self.trained, arrays, extra)
        self._saved = time.perf_counter()
        if self._stop.signal_number:
            raise Stopped(self._stop.signal_number)

    def _progress_bar(self) -> tqdm:
        return progress(initial=self.trained, unit=" rows", unit_scale=True)
