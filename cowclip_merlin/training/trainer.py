"""Train a model: the loop over epochs and steps, with checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from cowclip_merlin import workers
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    ColumnArrays,
    load_to_device,
    steps_per_epoch,
    total_weight,
    usual_generator,
)
from cowclip_merlin.loading.column_arrays import on_host
from cowclip_merlin.loading.row_order import NUMPY, PHILOX
from cowclip_merlin.metrics import ReliabilityBin, reliability
from cowclip_merlin.system.signals import GracefulStop, Stopped
from cowclip_merlin.training import evaluation, run_logs
from cowclip_merlin.training.checkpoint import Checkpoints
from cowclip_merlin.training.divergence import check_loss, check_predictions, raising_diverged
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.scoring.predicting import PREDICTION_BATCH_SIZE, Predictor
from cowclip_merlin.training.several_targets.evaluating import evaluate_targets, first_target
from cowclip_merlin.training.several_targets.names import metric_words, metrics_of
from cowclip_merlin.training.several_workers.worker_state import (
    check_same_state,
    gather_loss,
    largest_signal,
    logging_traffic,
)
from cowclip_merlin.training.step_recorder import AfterEpoch, NoRecorder, StepRecorder, ignore_epoch
from cowclip_merlin.training.stopping.best_epoch import end_message, kept_row, worse_than_constant
from cowclip_merlin.training.stopping.early_stopping import EarlyStopping
from cowclip_merlin.training.train_step import (
    execution_lengths,
    make_train_function,
    make_train_step,
    steps_per_execution,
)
from cowclip_merlin.workers.agreement import numbers_of_all

if TYPE_CHECKING:
    import logging

    from cowclip_merlin.loading.row_order import PackedBatch
    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.optimizer import CowClip
    from cowclip_merlin.training.run_logs import Metrics


class Trainer:
    """Trains one model on one prepared data set and writes its metrics.

    With several workers, worker 0 writes all files, and every worker does the rest.

    Args:
        model: Merlin model with its variables created.
        optimizer: `CowClip`.
        train: training rows.
        scored: rows to compute the metrics on; the model never trains on them.
        settings: settings of the run.
        folder: run folder for metrics.csv, events and checkpoints.
        log: logger for the lines that the user sees.
        checkpoint_every: steps between checkpoints within an epoch; 0: only at its end.
        row_order: generator of the order of the rows, which a resumed run keeps; None: the usual
            one of this device.
        data_memory: bytes of device memory for rows; None: all that is free, no limit on the CPU.

    Attributes:
        recorder: records batches before the model trains on them; set it before `run`.
        after_epoch: gets the record of each epoch, after its checkpoint; set it before `run`.
        steps_per_execution: maximum number of steps in one call of the train function.
    """

    def __init__(
        self,
        model: CTRModel,
        optimizer: CowClip,
        train: ColumnArrays,
        scored: ColumnArrays,
        settings: RunSettings,
        folder: Path,
        log: logging.Logger,
        *,
        checkpoint_every: int = 0,
        row_order: str | None = None,
        data_memory: int | None = None,
    ) -> None:
        self.settings, self.log, self.folder = settings, log, folder
        self._checkpoint_every = checkpoint_every
        self.workers = workers.current()
        self._writes = self.workers is None or self.workers.is_first
        self.model, self.optimizer = model, optimizer
        # Slots must exist before a checkpoint is restored, or the first step starts from 0.
        optimizer.create_state(model.trainable_variables)
        loaded = load_to_device(
            train,
            scored,
            batch_size=settings.batch_size,
            scoring_batch=PREDICTION_BATCH_SIZE,
            memory=data_memory,
        )
        log.info("%s", loaded)
        self.data = loaded.train
        self.data.generator = row_order or self._generator()
        self.predictor = Predictor(model, loaded.test)
        self.targets = model.blocks[0].columns.targets
        self._scored = scored
        self._total_weight = total_weight(train)
        self.checkpoints = Checkpoints(folder / "checkpoints", model, optimizer)
        patience = settings.early_stopping
        self._early = EarlyStopping(folder, patience, self.checkpoints, self.workers)
        self.steps = steps_per_epoch(self.data.rows, settings.batch_size)
        most = steps_per_execution(settings.batch_size) if self.data.resident else 1
        # Workers meet after every execution, also if one of them streams its rows.
        self.steps_per_execution = int(min(numbers_of_all(self.workers, most)))
        step = (model, optimizer, self.data, self.checkpoints.loss_sum)
        self._step = (
            partial(make_train_function(*step), batch_size=settings.batch_size)
            if self.steps_per_execution > 1
            else make_train_step(*step)
        )
        self._stop = GracefulStop()
        self.rows: list[Metrics] = []
        self.recorder: StepRecorder = NoRecorder()
        self.after_epoch: AfterEpoch = ignore_epoch

    def _generator(self) -> str:
        """Return the generator that all workers use."""
        usual = usual_generator(self.data)
        return usual if all(numbers_of_all(self.workers, int(usual == PHILOX))) else NUMPY

    def wait(self) -> None:
        """Wait until the device has finished all steps so far."""
        self.checkpoints.loss_sum.numpy()

    def resume(self) -> None:
        """Restore the last checkpoint and the metrics up to it.

        Raises:
            InputError: if the checkpoint or the metrics are damaged or missing, or the settings
                have fewer epochs than are trained.
        """
        path = self.checkpoints.restore()
        for damage in self.checkpoints.skipped:
            self.log.warning("%s; using an older one", damage)
        if not self._writes:
            self.checkpoints.loss_sum.assign(0.0)  # worker 0 has the sum of all
        done, step = int(self.checkpoints.epoch.numpy()), int(self.checkpoints.step.numpy())
        self._check_epochs(done + (step > 0))
        before = run_logs.read_metrics(self.folder / "metrics.csv", epochs=done)
        self.rows = [run_logs.parse_metrics_row(row) for row in before]
        if done >= self.settings.epochs and not self.rows:
            raise InputError(
                f"{self.folder}: all {done} epochs are trained, but metrics.csv has none of them; "
                "score the run with cowclip evaluate, or train more `epochs`"
            )
        self._early.resume(self.rows, done, step)
        self.log.info("resumed from %s: epoch %d, step %d", path, done, step)

    def _check_epochs(self, begun: int) -> None:
        """Refuse fewer epochs than the checkpoint has trained or begun."""
        if begun > self.settings.epochs:
            raise InputError(
                f"{self.folder}: `epochs` is {self.settings.epochs}, but epoch {begun} is trained "
                f"or begun; resume with `epochs` {begun} or more"
            )

    def score_now(self) -> Metrics:
        """Return the metrics of the scored rows before the first epoch, those that are finite.

        Raises:
            InputError: if a prediction is not finite.
        """
        found = metrics_of(self.settings.scored_split, self._evaluate(0)[0])
        return {name: value for name, value in found.items() if np.isfinite(value)}

    def run(self) -> list[Metrics]:
        """Train all epochs, or until the run stops early; return one record per epoch.

        Raises:
            Stopped: after SIGINT or SIGTERM; a checkpoint is written first.
        """
        board = run_logs.TensorBoard(self.folder / "events") if self._writes else run_logs.NoBoard()
        first, step = int(self.checkpoints.epoch.numpy()), int(self.checkpoints.step.numpy())
        try:
            self.recorder.open(first * self.steps + step, board)
            with self._stop.catch_signals():
                for epoch in range(first, self.settings.epochs):
                    if self._early.stops(self.rows):
                        break
                    seconds, trained = self._train_epoch(epoch)
                    self._finish_epoch(epoch, seconds, trained, board)
                    self.after_epoch(self.rows[-1])
        finally:
            board.close()
        kept = kept_row(self.rows, self.settings)
        if message := worse_than_constant(kept, self.settings.scored_split):
            self.log.warning("%s", message)
        if message := end_message(self.rows, self.settings):
            self.log.info("%s", message)
        return self.rows

    def _train_epoch(self, epoch: int) -> tuple[float, int]:
        """Train an epoch from the checkpoint's step on; return seconds and rows trained."""
        settings, first = self.settings, int(self.checkpoints.step.numpy())
        if first == 0:
            self.checkpoints.loss_sum.assign(0.0)
        started, paused, step = time.perf_counter(), 0.0, first
        lengths, batches = self._executions(epoch, first)
        # `closing` ends the thread that streams rows, even after an error.
        with (
            logging_traffic(self.workers, self.log, self.steps - first),
            self._progress_bar(epoch, first) as bar,
            closing(batches),
        ):
            for steps, batch in zip(lengths, batches, strict=True):
                self._observe(batch, epoch, step)
                self._train_batch(batch)
                step += steps
                bar.update(steps)
                due = self._checkpoint_every and step % self._checkpoint_every == 0
                signal_number = largest_signal(self.workers, self._stop)
                if signal_number or (due and step < self.steps):
                    paused -= time.perf_counter()
                    self._save(step)
                    self._stop_after(signal_number)
                    paused += time.perf_counter()
        with raising_diverged():
            self.optimizer.flush()  # do the work that update="exact" has postponed
        self.wait()
        seconds = time.perf_counter() - started - paused
        self.recorder.pause()
        # A run that stopped in the last step of an epoch has no rows left to train.
        return seconds, max(0, self.data.rows - first * settings.batch_size)

    def _executions(self, epoch: int, first: int) -> tuple[list[int], Iterator[PackedBatch]]:
        """Return the number of steps of each call from step `first` on, and the calls' batches."""
        settings, done = self.settings, epoch * self.steps
        stops = [(self._checkpoint_every, 0), (self.recorder.every, done)]
        stops = [stop for stop in stops if stop[0]]
        lengths = list(execution_lengths(first, self.steps, self.steps_per_execution, stops))
        size, how = settings.batch_size, {"seed": settings.seed, "epoch": epoch}
        if self.steps_per_execution == 1:
            return lengths, self.data.batches(size, start=first, **how)
        return lengths, self.data.variable_batches(
            [n * size for n in lengths], first=first * size, **how
        )

    def _observe(self, batch: PackedBatch, epoch: int, done: int) -> None:
        """Pass the recorder the batch that follows `done` steps of this epoch."""
        step, rows = epoch * self.steps + done, epoch * self.data.rows
        rows += done * self.settings.batch_size
        self.recorder.before_step(batch, step=step, epoch=epoch + 1, rows=rows)

    def _train_batch(self, batch: PackedBatch) -> None:
        with raising_diverged():
            self._step(batch)

    def _progress_bar(self, epoch: int, first: int) -> tqdm:
        return tqdm(
            total=self.steps,
            initial=first,
            desc=f"epoch {epoch + 1}/{self.settings.epochs}",
            unit="step",
            leave=False,
            disable=None if self._writes else True,
        )

    def _save(self, step: int) -> None:
        with raising_diverged():
            self.optimizer.flush()  # so that evaluation can read the weights without the optimizer
        self.recorder.pause()
        self.checkpoints.step.assign(step)
        check_same_state(self.workers, step, self.model)
        gather_loss(self.workers, self.checkpoints.loss_sum)
        self.checkpoints.save()

    def _stop_after(self, signal_number: int | None) -> None:
        if signal_number:
            raise Stopped(signal_number)

    def _finish_epoch(
        self, epoch: int, seconds: float, trained: int, board: run_logs.TensorBoard
    ) -> None:
        loss_sum = gather_loss(self.workers, self.checkpoints.loss_sum)
        check_loss(loss_sum, epoch + 1)
        started = time.perf_counter()
        result, bins = self._evaluate(epoch + 1)
        scoring_seconds = time.perf_counter() - started
        row = self._metrics_row(epoch, seconds, trained, result, scoring_seconds, loss_sum)
        self.rows.append(row)
        if self._writes:
            run_logs.write_metrics(self.folder / "metrics.csv", self.rows)
            if bins:
                path = self.folder / "reliability.csv"
                run_logs.write_reliability(path, epoch + 1, self.settings.scored_split, bins)
        board.write(epoch + 1, {k: v for k, v in row.items() if k != "epoch"})
        words = metric_words(row, self.settings.scored_split)
        self.log.info(
            "epoch %d: train loss %.5f, %s %s, %s rows/s, %.1f s",
            epoch + 1,
            row["train_loss"],
            self.settings.scored_split,
            words or f"AUC {result.auc:.5f}, log loss {result.log_loss:.5f}",
            f"{row['rows_per_second']:,.0f}",
            seconds,
        )
        self.checkpoints.epoch.assign(epoch + 1)
        signal_number = largest_signal(self.workers, self._stop)
        self._save(0)
        self._early.keep(self.rows)
        self._stop_after(signal_number)

    def _evaluate(
        self, epoch: int
    ) -> tuple[evaluation.Evaluation | evaluation.RegressionEvaluation, list[ReliabilityBin]]:
        """Return the metrics, and the bins of the first target if it is a label of 0 and 1."""
        if self.predictor.on_device:
            found = self.predictor.metrics()
            check_predictions(found.nan_rows, epoch)
            return evaluation.from_device(found, len(self._scored)), found.bins
        values, weights = self.predictor.predict(), on_host(self._scored.weight)
        check_predictions(int(np.isnan(values).sum()), epoch)
        scored = (self.targets, on_host(self._scored.label), values)
        labels, first, of_first = first_target(*scored, weights)
        number = self.targets[0].regression
        bins = [] if number else reliability(labels, first, sample_weight=of_first)
        return evaluate_targets(*scored, weights=weights), bins

    def _metrics_row(
        self,
        epoch: int,
        seconds: float,
        trained: int,
        result: evaluation.Evaluation | evaluation.RegressionEvaluation,
        scoring_seconds: float,
        loss_sum: float,
    ) -> Metrics:
        optimizer, split = self.optimizer, self.settings.scored_split
        embedding_lr, dense_lr = optimizer.learning_rates
        return {
            "epoch": epoch + 1,
            "step": int(optimizer.iterations.numpy()),
            "train_loss": loss_sum / self._total_weight,
            "rows_per_second": round(trained / seconds, 1),
            "seconds": round(seconds, 3),
            f"{split}_seconds": round(scoring_seconds, 3),
            "clipped_share": float(optimizer.clipped_share.numpy()),
            "mean_clip_factor": float(optimizer.mean_clip_factor.numpy()),
            "embedding_lr": embedding_lr,
            "dense_lr": dense_lr,
            **metrics_of(split, result),
        }

