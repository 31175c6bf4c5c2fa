"""Probe every N-th step of a training run, and write the results."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.contrib.diagnostics.diagnostics_csv import (
    DiagnosticsWriter,
    probe_records,
    tensorboard_scalars,
)
from cowclip_merlin.contrib.diagnostics.row_norms import Deciles, RowNorms, read_deciles
from cowclip_merlin.training.run_logs import Hooks, TensorBoard

if TYPE_CHECKING:
    from cowclip_merlin.loading.row_order import PackedBatch
    from cowclip_merlin.training.trainer import Trainer
    from cowclip_merlin.workflows import PreparedData


class Stopwatch:
    """Measures the seconds of training, without pauses and probes.

    >>> watch = Stopwatch(clock=iter([1.0, 3.0, 10.0, 10.5]).__next__)
    >>> watch.start(); watch.stop(); watch.start(); watch.stop(); watch.lap()
    2.5
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._seconds, self._since = clock, 0.0, None

    def start(self) -> None:
        """Start the clock, unless it is running."""
        if self._since is None:
            self._since = self._clock()

    def stop(self) -> None:
        """Stop the clock, unless it has stopped."""
        if self._since is not None:
            self._seconds += self._clock() - self._since
            self._since = None

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class Recorder(Hooks):
    """Probes batches before the model trains on them, and writes the results.

    Args:
        probe: maps a batch to the norms of its rows; see `probe.make_probe`.
        deciles: deciles of the data set.
        every: steps between probes; the first probe is before the first step.
        rates: returns the learning rates, embedding and dense, of the next step.
        wait: waits until the device has finished all steps.
        folder: the run folder.
    """

    def __init__(
        self,
        probe: Callable[[PackedBatch], RowNorms],
        deciles: Deciles,
        *,
        every: int,
        rates: Callable[[], tuple[float, float]],
        wait: Callable[[], object],
        folder: Path,
    ) -> None:
        super().__init__(every)
        self._probe, self._deciles = probe, deciles
        self._rates, self._wait, self._folder = rates, wait, folder
        self._watch, self._rows_before = Stopwatch(), -1

    def open(self, step: int, board: TensorBoard) -> None:
        """Start at this step, and delete earlier results of this and later steps.

        Args:
            step: number of steps done.
            board: TensorBoard writer of the run.
        """
        self._writer, self._board = DiagnosticsWriter(self._folder, before=step), board

    def before_step(self, batch: PackedBatch, *, step: int, epoch: int, rows: int) -> None:
        """Probe a batch, if its step is a multiple of `every`.

        Args:
            batch: the batch of the next step.
            step: number of steps done.
            epoch: the epoch, counted from 1.
            rows: number of rows in the steps done.
        """
        if step % self.every == 0:
            self._record(batch, step=step, epoch=epoch, rows=rows)
        self._watch.start()

    def pause(self) -> None:
        """Stop the clock until the next step, for an evaluation or a checkpoint."""
        self._watch.stop()

    def _record(self, batch: PackedBatch, *, step: int, epoch: int, rows: int) -> None:
        self._wait()
        self._watch.stop()
        records = probe_records(self._probe(batch), self._deciles, step=step, epoch=epoch)
        records[0] |= self._speeds(rows)
        self._writer.append(records)
        self._board.write(step, tensorboard_scalars(records))

    def _speeds(self, rows: int) -> dict[str, float]:
        """Return the learning rates, and the rows per second since the last probe, if any."""
        embedding_lr, dense_lr = self._rates()
        found = {"embedding_lr": embedding_lr, "dense_lr": dense_lr}
        seconds, before = self._watch.lap(), self._rows_before
        self._rows_before = rows
        return found | ({"rows_per_second": (rows - before) / seconds} if before >= 0 else {})


def make_recorder(trainer: Trainer, data: PreparedData, *, every: int) -> Recorder:
    """Make the recorder of a training run, which the training loop calls.

    Args:
        trainer: the run's trainer, ready for its first step.
        data: the prepared folder of the run.
        every: steps between probes.

    Raises:
        InputError: if the folder's counts of ids are missing or damaged.
    """
    from cowclip_merlin.contrib.diagnostics.probe import make_probe  # it imports TensorFlow

    size = trainer.settings.batch_size
    deciles = read_deciles(data, batch_size=size)
    probe = make_probe(trainer.model, trainer.optimizer, trainer.data)
    one_step = trainer.steps_per_execution == 1
    return Recorder(
        # If a call takes the rows of several batches, probe the first batch.
        probe if one_step else lambda rows: probe(rows[:size]),
        deciles,
        every=every,
        rates=lambda: trainer.optimizer.learning_rates,
        wait=trainer.wait,
        folder=trainer.folder,
    )
