"""Which settings of a run do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cowclip_merlin import choices
from cowclip_merlin.checks import one_of, parse_class_weights
from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import multipliers

if TYPE_CHECKING:
    from cowclip_merlin.training.run_settings import RunSettings

BETAS = ("beta_1", "beta_2")
"""Hyper-parameters that only Adam has."""

ADAGRADS = ("initial_accumulator",)
"""Hyper-parameters that only Adagrad has."""


_OF_SCHEDULES = {
    "lr_factor": ("plateau", "step"),
    "lr_patience": ("plateau",),
    "lr_every": ("step",),
    "lr_floor": ("plateau", "step", "linear", "cosine"),
}
"""The schedules that use a setting."""


def check_run(settings: RunSettings) -> None:
    """Refuse settings of which one has no effect, or makes another one wrong.

    Raises:
        InputError: if there are some.
    """
    _check_sharded(settings)
    if settings.class_weight is not None:
        parse_class_weights(settings.class_weight)
    if settings.frozen and settings.tables not in choices.FREEZING:
        raise InputError(
            f"`freeze_embeddings` does not work with `tables` {settings.tables}; use `tables` "
            f"{' or '.join(choices.FREEZING)}"
        )
    _ = settings.pretrained  # refuses what names no file
    _check_layers(settings)
    if settings.experts != 4 and settings.multi_task != "mmoe":
        raise InputError(
            f"`experts` has no effect with `multi_task` {settings.multi_task}; remove it, or use "
            "mmoe"
        )
    _check_optimizer(settings)
    _check_validation(settings)
    _check_schedule(settings)
    if settings.reset_embeddings:
        _check_reset(settings)


def _check_sharded(settings: RunSettings) -> None:
    clips = choices.kernel_clips()
    if settings.tables == "sharded" and settings.effective_clip not in clips:
        raise InputError(
            f"the clip {settings.effective_clip!r} needs norms over the rows of all workers, but "
            f"tables 'sharded' gives each worker a part; choose one of {', '.join(clips)}"
        )


def _check_layers(settings: RunSettings) -> None:
    if not settings.mlp:
        raise InputError("`mlp` is empty; give the width of one hidden layer or more")
    if settings.cross_layers != 3 and settings.model not in choices.CROSSED:
        raise InputError(
            f"cross_layers has no effect with model {settings.model!r}; remove it, or use "
            f"{' or '.join(choices.CROSSED)}"
        )
    for combiner in settings.combiner_of.values():
        one_of("combiner", combiner, choices.COMBINERS)
    parts = [part.strip() for part in settings.combiner.split(",")]
    if len(settings.combiner_of) < len(parts) or any(part[:1] == "=" for part in parts):
        raise InputError(f"`combiner` is {settings.combiner!r}; name every column once")


def _check_optimizer(settings: RunSettings) -> None:
    multipliers(settings.rule, 1, optimizer=settings.optimizer)  # refuses rules of Adam
    adam = settings.optimizer == "adam"
    for name in ADAGRADS if adam else BETAS:
        if name in settings.overrides:
            raise InputError(
                f"{name} is for {'Adagrad' if adam else 'Adam'}, but the optimizer is "
                f"{settings.optimizer!r}; remove {name}"
            )


def _check_validation(settings: RunSettings) -> None:
    used = {
        "given": "scores the rows of prepare --validation",
        "none": "holds out no row",
    }.get(settings.validation_split)
    if used and settings.validation_fraction:
        raise InputError(
            f"validation_fraction {settings.validation_fraction:g} has no effect with "
            f"validation_split {settings.validation_split!r}, which {used}; omit one"
        )
    if settings.validation_split == "last" and not settings.validation_fraction:
        raise InputError(
            f"validation_split {settings.validation_split!r} has no effect without a "
            "validation_fraction; give one, such as 0.1"
        )
    if settings.early_stopping is not None and settings.scored_split == "test":
        raise InputError(
            f"early_stopping is {settings.early_stopping}, but validation_fraction is 0 and test "
            "rows select no epoch; also set validation_fraction, such as 0.1"
        )
    if settings.scored_split == "validation":
        return
    for name in ("evaluate_every", "monitor"):
        if (value := getattr(settings, name)) not in (None, "auc"):
            raise InputError(
                f"{name} is {value}, but validation_fraction is 0 and no held-out rows are "
                "scored; also set validation_fraction, such as 0.1"
            )


def _check_schedule(settings: RunSettings) -> None:
    if settings.lr_schedule == "plateau" and settings.scored_split == "test":
        raise InputError(
            "lr_schedule is 'plateau', but validation_fraction is 0 and test rows choose no "
            "rates; also set validation_fraction, such as 0.1"
        )
    if settings.lr_schedule == "plateau" and settings.early_stopping is not None:
        _check_plateau_that_stops(settings, settings.early_stopping)
    for name, users in _OF_SCHEDULES.items():
        usual = getattr(type(settings), name)
        if settings.lr_schedule not in users and getattr(settings, name) != usual:
            raise InputError(
                f"{name} has no effect with lr_schedule {settings.lr_schedule!r}; remove it, or "
                f"use {' or '.join(users)}"
            )


def _check_plateau_that_stops(settings: RunSettings, patience: int) -> None:
    """Refuse a plateau that early stopping comes before, and one that never lets it come."""
    if settings.lr_patience > patience:
        raise InputError(
            f"early_stopping is {patience}, so the run would stop before its rates fall after "
            f"lr_patience {settings.lr_patience}; use an early_stopping of "
            f"{settings.lr_patience} or more"
        )
    if settings.rate_floor == 0:
        raise InputError(
            "lr_floor is 0, so the rates would fall without end, and each fall starts the "
            "count of early_stopping again; use one above 0, such as 0.01"
        )


def _check_reset(settings: RunSettings) -> None:
    """Refuse new embeddings that nothing trains, reads at the right time, or should lose."""
    if settings.epochs == 1:
        raise InputError(
            "reset_embeddings has no effect in one epoch; set `epochs` to 2 or more, or omit it"
        )
    if settings.evaluate_every is not None:
        raise InputError(
            f"evaluate_every is {settings.evaluate_every}, but with reset_embeddings the scores "
            "within an epoch are those of new embeddings; remove one of them"
        )
    if lost := [name for name in settings.pretrained if name not in settings.frozen]:
        raise InputError(
            f"reset_embeddings would replace the `pretrained_embeddings` of {lost[0]!r} after "
            "the first epoch; remove one of them, or also give `freeze_embeddings` the column"
        )
