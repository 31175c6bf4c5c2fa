"""Start or resume a training run in a run folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import compat, workers
from cowclip_merlin.addresses import origin
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    ColumnArrays,
    added_log_odds,
    class_weights_of,
    megabytes_to_bytes,
    open_all_and_test,
    open_train_and,
    open_train_and_validation,
    steps_per_epoch,
    validation_rows,
)
from cowclip_merlin.system.files import write_json
from cowclip_merlin.targets import columns_of_targets, kinds_of, only_clicks, refuse_several
from cowclip_merlin.training.build import (
    build_model,
    build_optimizer,
    check_table_memory,
    choose_device,
    read_pretrained_rows,
    set_pretrained_rows,
)
from cowclip_merlin.training.evaluation import check_targets_scored
from cowclip_merlin.training.run_config import CONFIG, RunConfig
from cowclip_merlin.training.run_folder import (
    check_resume,
    check_run_folder,
    facts_of,
    run_folder,
    run_log,
)
from cowclip_merlin.training.run_logs import Hooks, Metrics
from cowclip_merlin.training.run_settings import RunOptions, RunSettings
from cowclip_merlin.training.starting.going_on import comparison
from cowclip_merlin.training.starting.warm_start import WarmStart
from cowclip_merlin.training.stopping.falling_rates import FallingRates
from cowclip_merlin.training.trainer import Trainer
from cowclip_merlin.workers.agreement import (
    check_alike,
    naming_lost_workers,
    raising_together,
    wait_for_all,
)
from cowclip_merlin.workers.environment import cluster_of

if TYPE_CHECKING:
    from cowclip_merlin.workflows import PreparedData


def run_training(
    data: str | Path,
    settings: RunSettings,
    *,
    out: str | Path,
    options: RunOptions,
    recorder: Callable[[Trainer, PreparedData], Hooks] | None,
    after_epoch: Callable[[Metrics], None] | None = None,
) -> list[Metrics]:
    """Train as `cowclip_merlin.training.train` does, with an optional recorder of the steps.

    Args:
        data: the prepared folder.
        settings: the run's settings.
        out: the run folder.
        options: how to run it; the recorder has its `diagnostics_every`.
        recorder: makes what sees each batch before its step; None: nothing does.
        after_epoch: gets the record of each scoring, whose checkpoint is begun; it may raise an
            exception to end the training.
    """
    device = None
    if cluster_of(os.environ):  # errors of one worker must reach the others
        device = set_up_tensorflow(settings.seed, options.device)
        workers.join()
    group = workers.current()
    with naming_lost_workers(group), raising_together(group):
        run = Run(data, settings, Path(out), options, device)
    with naming_lost_workers(group):
        check_alike(group, facts_of(run.config, options))
        with run_folder(run.out, run.config, resume=options.resume), run_log(run.out) as log:
            done = run.train(log, recorder, after_epoch)
        wait_for_all(group)
        return done


class Run:
    """A training in a run folder: its inputs, which are checked here, and the training itself.

    Args:
        data: the prepared folder.
        settings: the run's settings.
        out: the run folder.
        options: how to run it.
        device: "gpu" or "cpu", if TensorFlow is set up; None: it is not.

    Raises:
        InputError: if an input is wrong.
    """

    def __init__(
        self,
        data: str | Path,
        settings: RunSettings,
        out: Path,
        options: RunOptions,
        device: str | None = None,
    ) -> None:
        from cowclip_merlin.workflows import PreparedData

        self.settings, self.out, self.options = settings, out, options
        self.data = prepared = PreparedData.load(data)
        values = settings.hyperparameters(prepared.kind)
        check_sizes(prepared, settings)
        check_run_folder(out)
        self._memory = megabytes_to_bytes(options.data_memory)
        self.config = RunConfig(
            settings=settings,
            values=values,
            fingerprint=prepared.fingerprint,
            vocabulary=prepared.vocabulary,
            data=origin(prepared.path),
            targets=kinds_of(prepared.targets),
        )
        check_resume(out, self.config, options.resume)
        self._start = None
        if options.warm_start is not None and not options.resume:
            self._start = WarmStart(options.warm_start, prepared, settings)
        settings.combiners(prepared.log_format.multi)  # refuses those of other columns
        settings.multi_task_of(prepared.targets)  # refuses what they cannot have
        self._device = device or set_up_tensorflow(settings.seed, options.device)
        check_table_memory(settings, prepared, self._device)
        self._open_rows()
        # A checkpoint has the rows of a run to resume.
        given = replace(settings, pretrained_embeddings=None) if options.resume else settings
        self._pretrained = read_pretrained_rows(given, prepared)

    def _open_rows(self) -> None:
        """Open the rows to train on and the rows to score, and check their labels."""
        settings, data, split = self.settings, self.data, self.settings.scored_split
        if settings.validation_fraction:
            how = (settings.validation_fraction, settings.validation_split)
            train, self._scored = open_train_and_validation(data, *how, memory=self._memory)
        elif settings.validation_split == "none" and "validation" in data.rows:
            train, self._scored = open_all_and_test(data)
        else:
            train, self._scored = open_train_and(data, split, memory=self._memory)
        remedy = "prepare with a larger `test_fraction`, or another `split`"
        if settings.validation_split == "given":
            remedy = "prepare with other rows of `validation`"
        elif split == "validation":
            remedy = "use a larger `validation_fraction`, or another `validation_split`"
        rows = (self._scored.labels, self._scored.weights)
        check_targets_scored(data.path, split, data.targets, *rows, remedy=remedy)
        check_targets_trained(data, train)
        if settings.class_weight is not None:
            remedy = "leave it out, or give rows a `weight`"
            refuse_several("`class_weight`", data.targets, remedy)
            weights = class_weights_of(settings.class_weight, train)
            train = replace(train, class_weights=weights)
        self._train, self._steps = train, steps_per_epoch(len(train), settings.batch_size)

    def train(
        self,
        log: logging.Logger,
        recorder: Callable[[Trainer, PreparedData], Hooks] | None,
        after_epoch: Callable[[Metrics], None] | None,
    ) -> list[Metrics]:
        """Train in the run folder, which is locked; see `run_training`."""
        config, options = self.config, self.options
        trainer = self._trainer(log)
        trainer.after_epoch = after_epoch
        first = trainer.workers is None or trainer.workers.is_first
        if recorder and trainer.workers and self.settings.tables == "sharded":
            log.info("no diagnostics: a probe of sharded tables would need all workers")
            recorder = None
        made = recorder(trainer, self.data) if recorder else Hooks()
        check_alike(trainer.workers, {"`diagnostics_every`": made.every})
        trainer.hooks = made if first else Hooks(made.every)
        if options.resume:
            trainer.resume()
            known = RunConfig.load(self.out)
            config = replace(config, start=known.start, before=known.before)
        else:
            if self._start is not None:
                log.info("%s", self._start.apply(trainer.model, trainer.optimizer))
                before = trainer.score_now()
                config = replace(config, start=str(options.warm_start), before=before)
            trainer.start()
        if first:
            kept = replace(config, row_order=trainer.data.generator)
            write_json(self.out / CONFIG, kept.as_dict())
        rows = trainer.run()
        if config.start is not None:
            log.info("%s", comparison(config, rows))
        return rows

    def _trainer(self, log: logging.Logger) -> Trainer:
        """Build the model, its optimizer and their trainer."""
        settings, values, data = self.settings, self.config.values, self.data
        falling = FallingRates(settings, self._steps)
        optimizer = build_optimizer(settings, values, data, steps=self._steps, falling=falling)
        self._log_settings(log, optimizer.backend)
        model = build_model(settings, values, data)
        if weights := self._train.class_weights:  # the first scores in the loss stay
            model.blocks[0].logit.bias.assign_sub([added_log_odds(weights)])
        set_pretrained_rows(model, self._pretrained)
        for rows in self._pretrained:
            log.info("%s", rows)
        return Trainer(
            model,
            optimizer,
            self._train,
            self._scored,
            settings,
            self.out,
            log,
            falling,
            checkpoint_every=self.options.checkpoint_every,
            row_order=RunConfig.load(self.out).row_order if self.options.resume else None,
            data_memory=self._memory,
        )

    def _log_settings(self, log: logging.Logger, backend: str) -> None:
        settings, values, rows = self.settings, self.config.values, len(self._train)
        log.info(
            "%s on %s: %s train rows, %s %s rows, %s ids; on the %s",
            settings.model,
            self.data.path,
            f"{rows:,}",
            f"{len(self._scored):,}",
            settings.scored_split,
            f"{sum(self.data.tables.values()):,}",
            self._device,
        )
        if weights := self._train.class_weights:
            log.info("class weights in the loss: %.6g for label 0, %.6g for label 1", *weights)
            if not all(weights):
                log.warning("scores are no click rates: one label has the weight 0 in the loss")
        if not only_clicks(self.data.targets):
            log.info("%s", _target_words(self.data, settings, self._train))
        last = rows - (self._steps - 1) * settings.batch_size
        log.info(
            "batch %d = %g x %d: %d steps per epoch, %d rows in the last",
            settings.batch_size,
            settings.batch_size / settings.base_batch_size,
            settings.base_batch_size,
            self._steps,
            last,
        )
        if few := _few_steps(rows, self._steps):
            log.warning("%s", few)
        log.info(
            "rule %s, clip %s, %s, update %s (%s): embedding lr %.6g, dense lr %.6g "
            "(warm-up %g epochs)%s, l2 %.6g, r %g, zeta %g, init std %g",
            settings.rule,
            settings.effective_clip,
            values.optimizer_words,
            settings.update,
            backend,
            values.embedding_lr,
            values.dense_lr,
            values.warmup_epochs,
            _schedule_words(settings),
            values.l2,
            values.r,
            values.zeta,
            values.init_std,
        )


def set_up_tensorflow(seed: int, device: str) -> str:
    """Seed TensorFlow and choose its device; return "gpu" or "cpu"."""
    tf = compat.tensorflow()
    used = choose_device(device)
    tf.keras.utils.set_random_seed(seed)
    if used == "cpu":
        tf.config.experimental.enable_op_determinism()
    return used


FEWEST_STEPS = 100
"""Fewer steps per epoch are told: below, the AUC usually drops."""


def _few_steps(rows: int, steps: int) -> str:
    """Say that an epoch has few steps, and which batch has enough; "" if it does not.

    >>> _few_steps(2696, 3)
    '3 steps per epoch: the batch is too large for 2,696 rows; 16 would make 169'
    >>> _few_steps(12800, 100), _few_steps(64, 4)
    ('', '4 steps per epoch: 64 rows are few')
    """
    if steps >= FEWEST_STEPS:
        return ""
    if rows < 2 * FEWEST_STEPS:
        return f"{steps} steps per epoch: {rows:,} rows are few"
    batch = 1 << (rows // FEWEST_STEPS).bit_length() - 1
    return (
        f"{steps} steps per epoch: the batch is too large for {rows:,} rows; {batch} would make "
        f"{steps_per_epoch(rows, batch)}"
    )


def _target_words(prepared: PreparedData, settings: RunSettings, train: ColumnArrays) -> str:
    """Describe the targets, and rows that ESMM's model contradicts."""
    named = [
        f"{target.name} ({known.mean():.1%} of the rows)"
        for target, known, _ in columns_of_targets(train.labels, prepared.targets)
    ]
    experts = f" of {settings.experts} experts" if settings.multi_task == "mmoe" else ""
    if len(named) == 1:
        return f"target {named[0]}: a number"
    words = f"targets {', '.join(named)}: {settings.multi_task}{experts}"
    if settings.multi_task != "esmm":
        return words
    wrong = int(((train.labels[:, 0] == 0) & (train.labels[:, 1] == 1)).sum())
    first, second = (target.name for target in prepared.targets)
    return words + f"; {wrong:,} rows have {second} 1 but {first} 0" if wrong else words


def _schedule_words(settings: RunSettings) -> str:
    """Describe how the rates fall; "" if they do not."""
    by = {
        "plateau": f" by {settings.lr_factor:g}, patience {settings.lr_patience}",
        "step": f" by {settings.lr_factor:g} every {settings.lr_every:g} epochs",
    }.get(settings.lr_schedule, "")
    if settings.lr_schedule == "constant":
        return ""
    return f" falling ({settings.lr_schedule}{by}, to {settings.rate_floor:g})"


def check_sizes(prepared: PreparedData, settings: RunSettings) -> None:
    """Check that a prepared folder has enough rows for these settings."""
    check_train_rows(prepared)
    rows = prepared.rows["train"]
    if settings.validation_fraction:
        rows -= validation_rows(rows, settings.validation_fraction)
    elif settings.validation_split == "given":
        if settings.scored_split not in prepared.rows:
            raise InputError(
                f"{prepared.path}: has no validation rows; prepare it with `validation`, or use "
                "another `validation_split`"
            )
    elif prepared.rows["test"] == 0:
        raise InputError(
            f"{prepared.path}: no test rows to score after each epoch; add `validation_fraction` "
            "0.001 for a model on nearly all rows, or prepare with a larger `test_fraction`"
        )
    if settings.validation_split == "none":
        rows += prepared.rows.get("validation", 0)
    if settings.batch_size > rows:
        raise InputError(
            f"batch size {settings.batch_size} is larger than the {rows} training rows of "
            f"{prepared.path}; use a smaller `batch_size`"
        )
    if settings.evaluate_every is not None and settings.evaluate_every >= rows:
        raise InputError(
            f"evaluate_every is {settings.evaluate_every}, but an epoch has {rows} training rows "
            "and is scored at its end anyway; use a smaller one"
        )


def check_targets_trained(prepared: PreparedData, train: ColumnArrays) -> None:
    """Check that some training row has a label of each of several targets.

    Raises:
        InputError: if a target has none.
    """
    for target, known, _ in columns_of_targets(train.labels, prepared.targets):
        if not known.any():
            raise InputError(
                f"{prepared.path}: no training row has a label {target.name!r}; prepare rows that "
                "have it, or without this label"
            )


def check_train_rows(prepared: PreparedData) -> None:
    """Check that a prepared folder has rows to train on, which one of `--like` never has.

    Raises:
        InputError: if it has none.
    """
    if prepared.rows["train"]:
        return
    like = prepared.description.get("settings", {}).get("like")
    if like is None:
        raise InputError(f"{prepared.path}: no training rows; prepare a log with more rows")
    raise InputError(
        f"{prepared.path}: prepared with `like` {like}, so all of its rows are test rows; train on "
        f"{like}, score these rows with cowclip evaluate, or prepare the log without `like`"
    )
