"""Train a model: the loop over epochs and steps, with scorings and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import workers
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    ColumnArrays,
    load_to_device,
    steps_per_epoch,
    total_weight,
    usual_generator,
)
from cowclip_merlin.loading.row_order import NUMPY, PHILOX, PackedBatch
from cowclip_merlin.metrics import ReliabilityBin, reliability
from cowclip_merlin.system.console import progress
from cowclip_merlin.system.signals import GracefulStop, Stopped
from cowclip_merlin.training import evaluation, run_logs
from cowclip_merlin.training.checkpoint import CHECKPOINTS, Checkpoints
from cowclip_merlin.training.evaluation import evaluate_targets, rows_of_targets
from cowclip_merlin.training.run_logs import (
    LONG,
    Hooks,
    Lap,
    Metrics,
    metric_words,
    metrics_of,
    saying_that_it_compiles,
)
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.scoring.predicting import PREDICTION_BATCH_SIZE, Predictor
from cowclip_merlin.training.starting.warm_start import reset_embeddings
from cowclip_merlin.training.stopping.early_stopping import (
    EarlyStopping,
    end_message,
    kept_row,
    score_of,
    worse_than_constant,
)
from cowclip_merlin.training.stopping.falling_rates import FallingRates
from cowclip_merlin.training.train_step import (
    check_loss,
    check_predictions,
    execution_lengths,
    make_train_function,
    make_train_step,
    raising_diverged,
    steps_per_execution,
)
from cowclip_merlin.training.worker_state import (
    average_statistics,
    check_same_state,
    gather_loss,
    logging_traffic,
)
from cowclip_merlin.workers.agreement import numbers_of_all

if TYPE_CHECKING:
    import logging

    from tqdm import tqdm

    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.optimizer import CowClip


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
        falling: how the optimizer's rates fall.
        checkpoint_every: steps between checkpoints within an epoch; 0: only at its end.
        row_order: generator of the order of the rows, which a resumed run keeps; None: the usual
            one of this device.
        data_memory: bytes of device memory for rows; None: all that is free, no limit on the CPU.

    Attributes:
        hooks: what it calls at its steps; set them before `run`.
        after_epoch: gets the record of each scoring, with its checkpoint begun; set it before
            `run`.
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
        falling: FallingRates,
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
        self.checkpoints = Checkpoints(folder / CHECKPOINTS, model, optimizer)
        self._early = EarlyStopping(folder, settings, self.checkpoints, self.workers)
        self._falling = falling
        self.steps = steps_per_epoch(self.data.rows, settings.batch_size)
        # Steps from scoring to scoring within an epoch, and how many there are. The scoring after
        # the epoch stands for one that would come less than half that distance before it.
        rows = settings.evaluate_every
        self._score_every = 0 if rows is None else max(1, rows // settings.batch_size)
        self._within = int(self.steps / self._score_every - 0.5) if self._score_every else 0
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
        self.hooks = Hooks()
        self.after_epoch: Callable[[Metrics], None] | None = None
        self._compiled = False

    def _generator(self) -> str:
        """Return the generator that all workers use."""
        usual = usual_generator(self.data)
        return usual if all(numbers_of_all(self.workers, int(usual == PHILOX))) else NUMPY

    def wait(self) -> None:
        """Wait until the device has finished all steps so far."""
        self.checkpoints.loss_sum.numpy()

    def start(self) -> None:
        """Begin at the first step, after an earlier run's state was taken over, if it was."""
        self._falling.start(self._steps_made())

    def _steps_made(self) -> int:
        return int(self.optimizer.dense_optimizer.iterations.numpy())

    def resume(self) -> None:
        """Restore the last checkpoint and the metrics up to it.

        Raises:
            InputError: if the checkpoint or the metrics are damaged or missing, or the settings
                have fewer epochs than are trained.
        """
        path = self.checkpoints.resume()
        for damage in self.checkpoints.skipped:
            self.log.warning("%s", damage)
        if not self._writes:
            self.checkpoints.loss_sum.assign(0.0)  # worker 0 has the sum of all
        done, step = self.checkpoints.epoch, self.checkpoints.step
        self._check_epochs(done + (step > 0))
        # A stop in the last step of an epoch comes before its scoring, also if a row is there.
        position = done + min(step, self.steps - 1) / self.steps
        before = run_logs.read_metrics(self.folder / "metrics.csv", epochs=position)
        self.rows = [run_logs.parse_metrics_row(row) for row in before]
        if done >= self.settings.epochs and not self.rows:
            raise InputError(
                f"{self.folder}: all {done} epochs are trained, but metrics.csv has none of them; "
                "score the run with cowclip evaluate, or train more `epochs`"
            )
        at_scoring = step == 0 or self._scores_after(step)
        self._early.resume(self.rows, self._scorings(done, step), at_scoring=at_scoring)
        self._falling.start(self._steps_made(), done=done * self.steps + step)
        self._falling.follow(self.rows, self.workers)
        self.log.info("resumed from %s: epoch %d, step %d", path, done, step)

    def _scores_after(self, step: int) -> bool:
        """Whether the rows are scored after so many steps within an epoch."""
        every = self._score_every
        return bool(every) and step % every == 0 and step <= every * self._within

    def _scorings(self, epoch: int, step: int) -> int:
        """Count the scorings up to this step of the epoch that follows so many."""
        within = min(step // self._score_every, self._within) if self._score_every else 0
        return epoch * (self._within + 1) + within

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
        first, step = self.checkpoints.epoch, self.checkpoints.step
        # A full disk may refuse the last events, too; then the thread still has to end.
        with closing(self.checkpoints), closing(board):
            self.hooks.open(first * self.steps + step, board)
            with self._stop.catch_signals():
                for epoch in range(first, self.settings.epochs):
                    if self._early.stops(self.rows):
                        break
                    self._train_epoch(epoch, board)
                self.checkpoints.finish()
        kept = kept_row(self.rows, self.settings)
        if message := worse_than_constant(kept, self.settings.scored_split):
            self.log.warning("%s", message)
        if message := end_message(self.rows, self.settings):
            self.log.info("%s", message)
        return self.rows

    def _train_epoch(self, epoch: int, board: run_logs.TensorBoard) -> None:
        """Train an epoch from the checkpoint's step on, unless the run stops early within it."""
        first = self.checkpoints.step
        if first == 0:
            self.checkpoints.loss_sum.assign(0.0)
            if epoch and self.settings.reset_embeddings:
                self.log.info("epoch %d starts with new embeddings", epoch + 1)
                reset_embeddings(self.model, self.optimizer, epoch)
        lap, step = Lap(first), first
        lengths, batches = self._executions(epoch, first)
        # `closing` ends the thread that streams rows, even after an error.
        with (
            logging_traffic(self.workers, self.log, self.steps - first),
            self._progress_bar(epoch, first) as bar,
            closing(batches),
        ):
            for steps, batch in zip(lengths, batches, strict=True):
                self._observe(batch, epoch, step)
                step += steps
                if self._compiled:
                    self._train_batch(batch)
                else:
                    lap = self._compile(batch, lap, step)
                bar.update(steps)
                due = self._checkpoint_every and step % self._checkpoint_every == 0
                signal_number = self._signal_of_any()
                if self._scores_after(step):
                    self._score(epoch, step, lap, board, signal_number)
                    if self._early.stops(self.rows):
                        return
                    bar.set_postfix_str(self._score_words(self.rows[-1]))
                    lap = Lap(step)
                elif signal_number or (due and step < self.steps):
                    lap.pause()
                    self._save(step)
                    self._stop_after(signal_number)
                    lap.go_on()
        self._score(epoch, self.steps, lap, board)

    def _compile(self, batch: PackedBatch, lap: Lap, step: int) -> Lap:
        """Train the first batch of this process; return a lap without it if it took long."""
        self._compiled, begun = True, time.perf_counter()
        with saying_that_it_compiles(self.log):
            self._train_batch(batch)
            self.wait()
        seconds = time.perf_counter() - begun
        if seconds < LONG or step == self.steps or self._scores_after(step):
            return lap
        self.log.info("the first step took %.0f s to compile; the speed leaves it out", seconds)
        return Lap(step)

    def _executions(self, epoch: int, first: int) -> tuple[list[int], Iterator[PackedBatch]]:
        """Return the number of steps of each call from step `first` on, and the calls' batches."""
        settings, done = self.settings, epoch * self.steps
        stops = [(self._checkpoint_every, 0), (self._score_every, 0), (self.hooks.every, done)]
        stops = [stop for stop in stops if stop[0]]
        lengths = list(execution_lengths(first, self.steps, self.steps_per_execution, stops))
        size, how = settings.batch_size, {"seed": settings.seed, "epoch": epoch}
        if self.steps_per_execution == 1:
            return lengths, self.data.batches(size, start=first, **how)
        return lengths, self.data.variable_batches(
            [n * size for n in lengths], first=first * size, **how
        )

    def _observe(self, batch: PackedBatch, epoch: int, done: int) -> None:
        """Show the hooks the batch that follows `done` steps of this epoch."""
        step, rows = epoch * self.steps + done, epoch * self.data.rows
        rows += done * self.settings.batch_size
        self.hooks.before_step(batch, step=step, epoch=epoch + 1, rows=rows)

    def _train_batch(self, batch: PackedBatch) -> None:
        with raising_diverged():
            self._step(batch)

    def _progress_bar(self, epoch: int, first: int) -> tqdm:
        given = {"initial": first, "unit": "step"} | ({} if self._writes else {"disable": True})
        return progress(self.steps, desc=f"epoch {epoch + 1}/{self.settings.epochs}", **given)

    def _signal_of_any(self) -> int | None:
        """Return the signal that a worker has got, so that all stop after the same step.

        Raises:
            OSError: this worker could not write the last checkpoint.
            InputError: another worker could not.
        """
        own = -1 if self.checkpoints.failed else self._stop.signal_number or 0
        every = numbers_of_all(self.workers, own)
        if min(every) < 0:
            self.checkpoints.finish()
        return int(max(every)) or None

    def _save(self, step: int, then: Callable[[int], None] | None = None) -> None:
        with raising_diverged():
            self.optimizer.flush()  # so that evaluation can read the weights without the optimizer
        self.hooks.pause()
        self.checkpoints.step = step
        average_statistics(self.workers, self.model)
        check_same_state(self.workers, step, self.model)
        gather_loss(self.workers, self.checkpoints.loss_sum)
        self.checkpoints.save(then)

    def _stop_after(self, signal_number: int | None) -> None:
        if signal_number:
            self.checkpoints.finish()
            raise Stopped(signal_number)

    def _score(
        self,
        epoch: int,
        step: int,
        lap: Lap,
        board: run_logs.TensorBoard,
        signal_number: int | None = None,
    ) -> None:
        """Score the rows after so many steps of an epoch, write the metrics, and a checkpoint."""
        with raising_diverged():
            self.optimizer.flush()  # do the work that update="exact" has postponed
        self.wait()
        lap.pause()
        self.hooks.pause()
        at_end = step == self.steps
        average_statistics(self.workers, self.model)
        loss_sum = gather_loss(self.workers, self.checkpoints.loss_sum)
        check_loss(loss_sum, epoch + 1)
        started = time.perf_counter()
        result, bins = self._evaluate(epoch + 1)
        scoring_seconds = time.perf_counter() - started
        position = epoch + 1 if at_end else epoch + step / self.steps
        row = self._metrics_row(position, lap, step, result, scoring_seconds, loss_sum)
        self.rows.append(row)
        if self._writes:
            run_logs.write_metrics(self.folder / "metrics.csv", self.rows)
            if bins:
                path = self.folder / "reliability.csv"
                run_logs.write_reliability(path, position, self.settings.scored_split, bins)
        number = self._scorings(epoch + at_end, 0 if at_end else step)
        board.write(number, {k: v for k, v in row.items() if k != "epoch"})
        self._log_scoring(row)
        if self._falling.follow(self.rows, self.workers):
            rates = self.optimizer.learning_rates
            score = score_of(row, self.settings.scored_split, self.settings.monitor)
            words = "validation %s no %s: the rates fall to embedding lr %.4g, dense lr %.4g"
            self.log.info(words, score.name, score.better, *rates)
        self.checkpoints.epoch = epoch + at_end
        signal_number = signal_number or self._signal_of_any()
        self._save(0 if at_end else step, self._early.keeping(self.rows))
        self._stop_after(signal_number)
        if self.after_epoch is not None:
            self.after_epoch(row)

    def _log_scoring(self, row: Metrics) -> None:
        loss = f"train loss {row['train_loss']:.5f}, " if "train_loss" in row else ""
        self.log.info(
            "epoch %.6g: %s%s, %s rows/s, %.1f s",
            row["epoch"],
            loss,
            self._score_words(row),
            f"{row['rows_per_second']:,.0f}",
            row["seconds"],
        )

    def _score_words(self, row: Metrics) -> str:
        split = self.settings.scored_split
        if words := metric_words(row, split):
            return f"{split} {words}"
        return f"{split} AUC {row[f'{split}_auc']:.5f}, log loss {row[f'{split}_log_loss']:.5f}"

    def _evaluate(
        self, epoch: int
    ) -> tuple[evaluation.Evaluation | evaluation.RegressionEvaluation, list[ReliabilityBin]]:
        """Return the metrics, and the bins of the first target if it is a label of 0 and 1."""
        if self.predictor.on_device:
            found = self.predictor.metrics()
            check_predictions(found.nan_rows, epoch)
            return evaluation.from_device(found, len(self._scored)), found.bins
        values, weights = self.predictor.predict(), self._scored.weights
        check_predictions(int(np.isnan(values).sum()), epoch)
        labels, bins = self._scored.labels, []
        (first, _, rows), *_ = rows_of_targets(self.targets, labels, values, weights)
        if not first.regression:
            bins = reliability(rows[0], rows[1], sample_weight=rows[2])
        return evaluate_targets(self.targets, labels, values, weights=weights), bins

    def _metrics_row(
        self,
        position: float,
        lap: Lap,
        step: int,
        result: evaluation.Evaluation | evaluation.RegressionEvaluation,
        scoring_seconds: float,
        loss_sum: float,
    ) -> Metrics:
        optimizer, split, size = (
            self.optimizer,
            self.settings.scored_split,
            self.settings.batch_size,
        )
        # A run that stopped in the last step of an epoch has no rows left to train.
        trained = max(0, min(step * size, self.data.rows) - lap.first * size)
        weight = self._total_weight
        if position % 1:  # of the rows so far, which is known only if all have the weight 1
            weight = step * size if self._total_weight == self.data.rows else None
        embedding_lr, dense_lr = optimizer.learning_rates
        return {
            "epoch": position,
            "step": int(optimizer.iterations.numpy()),
            **({} if weight is None else {"train_loss": loss_sum / weight}),
            "rows_per_second": round(trained / lap.seconds, 1),
            "seconds": round(lap.seconds, 3),
            f"{split}_seconds": round(scoring_seconds, 3),
            "clipped_share": float(optimizer.clipped_share.numpy()),
            "mean_clip_factor": float(optimizer.mean_clip_factor.numpy()),
            "embedding_lr": embedding_lr,
            "dense_lr": dense_lr,
            **metrics_of(split, result),
        }
