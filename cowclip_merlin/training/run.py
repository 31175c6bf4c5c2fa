"""Start or resume a training run in a run folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
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
    open_train_and,
    open_train_and_validation,
    steps_per_epoch,
    validation_rows,
)
from cowclip_merlin.system.files import write_json
from cowclip_merlin.targets import (
    Target,
    columns_of_targets,
    kinds_of,
    only_clicks,
    refuse_several,
)
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
from cowclip_merlin.training.run_logs import AfterEpoch, NoRecorder, RecorderFactory, ignore_epoch
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
    from cowclip_merlin.training.run_logs import Metrics
    from cowclip_merlin.workflows import PreparedData
    from cowclip_merlin.workflows.prepared.pretrained import PretrainedRows


def run_training(
    data: str | Path,
    settings: RunSettings,
    *,
    out: str | Path,
    options: RunOptions,
    recorder: RecorderFactory | None,
    after_epoch: AfterEpoch = ignore_epoch,
) -> list[Metrics]:
    """Train as `cowclip_merlin.training.train` does, with an optional recorder of the steps.

    Args:
        data: the prepared folder.
        settings: the run's settings.
        out: the run folder.
        options: how to run it; the recorder has its `diagnostics_every`.
        recorder: makes the recorder that sees each batch before its step; None: no recorder.
        after_epoch: gets the record of each scoring, after its checkpoint; it may raise an
            exception to end the training.
    """
    from cowclip_merlin.workflows import PreparedData

    out, used = Path(out), None
    if cluster_of(os.environ):  # errors of one worker must reach the others
        used = set_up_tensorflow(settings.seed, options.device)
        workers.join()
    group = workers.current()
    with naming_lost_workers(group), raising_together(group):
        prepared = PreparedData.load(data)
        values = settings.hyperparameters(prepared.kind)
        check_sizes(prepared, settings)
        check_run_folder(out)
        memory = megabytes_to_bytes(options.data_memory)
        config = RunConfig(
            settings=settings,
            values=values,
            fingerprint=prepared.fingerprint,
            vocabulary=prepared.vocabulary,
            data=origin(prepared.path),
            targets=kinds_of(prepared.targets),
        )
        check_resume(out, config, options.resume)
        start = None
        if options.warm_start is not None and not options.resume:
            start = WarmStart(options.warm_start, prepared, settings)
        settings.combiners(prepared.log_format.multi)  # refuses those of other columns
        settings.multi_task_of(prepared.targets)  # refuses what they cannot have
        used = used or set_up_tensorflow(settings.seed, options.device)
        check_table_memory(settings, prepared, used)
        columns = _open_splits(prepared, settings, memory)
        split = settings.scored_split
        remedy = "prepare with a larger `test_fraction`, or another `split`"
        if settings.validation_split == "given":
            remedy = "prepare with other rows of `validation`"
        elif split == "validation":
            remedy = "use a larger `validation_fraction`, or another `validation_split`"
        rows = (columns[split].labels, columns[split].weights)
        check_targets_scored(prepared.path, split, prepared.targets, *rows, remedy=remedy)
        check_targets_trained(prepared, columns["train"])
        columns["train"] = _weighted_by_class(columns["train"], settings, prepared.targets)
        # A checkpoint has the rows of a run to resume.
        given = replace(settings, pretrained_embeddings=None) if options.resume else settings
        pretrained = read_pretrained_rows(given, prepared)
    with naming_lost_workers(group):
        check_alike(group, facts_of(config, options))
        with run_folder(out, config, resume=options.resume):
            done = _train(
                config,
                prepared,
                columns,
                pretrained,
                out,
                options,
                used,
                recorder,
                after_epoch,
                start,
            )
        wait_for_all(group)
        return done


def _open_splits(
    prepared: PreparedData, settings: RunSettings, memory: int | None
) -> dict[str, ColumnArrays]:
    """Open the rows to train on and the rows to score, by the name of their split."""
    if settings.validation_fraction:
        how = (settings.validation_fraction, settings.validation_split)
        train, scored = open_train_and_validation(prepared, *how, memory=memory)
    else:
        train, scored = open_train_and(prepared, settings.scored_split, memory=memory)
    return {"train": train, settings.scored_split: scored}


def _weighted_by_class(
    train: ColumnArrays, settings: RunSettings, targets: Sequence[Target]
) -> ColumnArrays:
    """Return the training rows with the weights of the labels in the loss, if there are any."""
    if settings.class_weight is None:
        return train
    refuse_several("`class_weight`", targets, "leave it out, or give rows a `weight`")
    return replace(train, class_weights=class_weights_of(settings.class_weight, train))


def set_up_tensorflow(seed: int, device: str) -> str:
    """Seed TensorFlow and choose its device; return "gpu" or "cpu"."""
    tf = compat.tensorflow()
    used = choose_device(device)
    tf.keras.utils.set_random_seed(seed)
    if used == "cpu":
        tf.config.experimental.enable_op_determinism()
    return used


def _train(
    config: RunConfig,
    prepared: PreparedData,
    columns: dict[str, ColumnArrays],
    pretrained: Sequence[PretrainedRows],
    out: Path,
    options: RunOptions,
    device: str,
    recorder: RecorderFactory | None,
    after_epoch: AfterEpoch,
    start: WarmStart | None,
) -> list[Metrics]:
    settings, values = config.settings, config.values
    with run_log(out) as log:
        steps = steps_per_epoch(len(columns["train"]), settings.batch_size)
        falling = FallingRates(settings, steps)
        optimizer = build_optimizer(settings, values, prepared, steps=steps, falling=falling)
        _log_settings(log, config, prepared, columns, steps, device, optimizer.backend)
        model = build_model(settings, values, prepared)
        if weights := columns["train"].class_weights:  # the first scores in the loss stay
            model.blocks[0].logit.bias.assign_sub([added_log_odds(weights)])
        set_pretrained_rows(model, pretrained)
        for rows in pretrained:
            log.info("%s", rows)
        trainer = Trainer(
            model,
            optimizer,
            columns["train"],
            columns[settings.scored_split],
            settings,
            out,
            log,
            falling,
            checkpoint_every=options.checkpoint_every,
            row_order=RunConfig.load(out).row_order if options.resume else None,
            data_memory=megabytes_to_bytes(options.data_memory),
        )
        first = trainer.workers is None or trainer.workers.is_first
        if recorder and trainer.workers and settings.tables == "sharded":
            log.info("no diagnostics: a probe of sharded tables would need all workers")
            recorder = None
        made = recorder(trainer, prepared) if recorder else NoRecorder()
        check_alike(trainer.workers, {"`diagnostics_every`": made.every})
        trainer.recorder = made if first else NoRecorder(made.every)
        if options.resume:
            trainer.resume()
            known = RunConfig.load(out)
            config = replace(config, start=known.start, before=known.before)
        else:
            if start is not None:
                log.info("%s", start.apply(trainer.model, trainer.optimizer))
                before = trainer.score_now()
                config = replace(config, start=str(options.warm_start), before=before)
            trainer.start()
        if first:
            kept = replace(config, row_order=trainer.data.generator)
            write_json(out / CONFIG, kept.as_dict())
        trainer.after_epoch = after_epoch
        rows = trainer.run()
        if config.start is not None:
            log.info("%s", comparison(config, rows))
        return rows


def _log_settings(
    log: logging.Logger,
    config: RunConfig,
    prepared: PreparedData,
    columns: dict[str, ColumnArrays],
    steps: int,
    device: str,
    backend: str,
) -> None:
    settings, values = config.settings, config.values
    rows = {split: len(part) for split, part in columns.items()}
    log.info(
        "%s on %s: %s, %s ids; on the %s",
        settings.model,
        prepared.path,
        ", ".join(f"{n:,} {split} rows" for split, n in rows.items()),
        f"{sum(prepared.tables.values()):,}",
        device,
    )
    if weights := columns["train"].class_weights:
        log.info("class weights in the loss: %.6g for label 0, %.6g for label 1", *weights)
        if not all(weights):
            log.warning("scores are no click rates: one label has the weight 0 in the loss")
    if not only_clicks(prepared.targets):
        log.info("%s", _target_words(prepared, settings, columns["train"]))
    last = rows["train"] - (steps - 1) * settings.batch_size
    log.info(
        "batch %d = %g x %d: %d steps per epoch, %d rows in the last",
        settings.batch_size,
        settings.batch_size / settings.base_batch_size,
        settings.base_batch_size,
        steps,
        last,
    )
    if few := _few_steps(rows["train"], steps):
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
    if only_clicks(prepared.targets):
        return
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
