"""Options that several commands share: of a model and its rates, and of training on a log."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cowclip_merlin import choices
from cowclip_merlin.checks import one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.scaling import NOT_SCALED, Hyperparameters
from cowclip_merlin.settings import add_options, options_of, settings_from, values_from
from cowclip_merlin.training.run_settings import OVERRIDES, RunSettings
from cowclip_merlin.workflows.prepare_settings import PrepareSettings

RULE = ("base_batch_size", "preset", "rule", "clip")
"""Settings that say how rates follow from the batch size."""

HIDDEN = ("activation", "dropout", "batch_norm")
"""Settings of the hidden layers that trainings on a prepared folder know."""

LAYERS = ("cross_layers", "embedding_dim", "continuous", "precision", "jit_compile")
"""Settings of the model's layers, without `mlp`."""


def add_rate_options(parser: argparse._ActionsContainer, *, without: Sequence[str] = ()) -> None:
    """Add one option for each rate.

    Args:
        parser: the command's parser.
        without: rates that the command does not use.
    """
    known = options_of(Hyperparameters)
    for name in OVERRIDES:
        if name not in without:
            base = "" if name in NOT_SCALED else " (at the base batch size)"
            changes = {"default": None, "help": known[name].help + base}
            add_options(parser, Hyperparameters, name, **{name: changes})


def model_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `RunSettings` that these options give."""
    given = {name: getattr(args, name, None) for name in OVERRIDES}
    overrides = {name: value for name, value in given.items() if value is not None}
    return values_from(args, RunSettings) | {"overrides": overrides}


def check_overrides_used(settings: RunSettings, clips: Iterable[str] | None = None) -> None:
    """Refuse a rate that the run's clip does not use.

    Args:
        settings: of the run.
        clips: the clips that the command can use, for the message; None for all.

    Raises:
        InputError: if there is one.
    """
    for name, users in settings.unused_overrides().items():
        usable = [clip for clip in users if clips is None or clip in clips]
        raise InputError(
            f"--{name.replace('_', '-')} has no effect with the clip {settings.effective_clip}; "
            f"remove it, or use --clip {' or '.join(usable)}"
        )


UNUSED_RATES = ("warmup_epochs", "lambda_rel", "lambda_abs")
"""Rates that training on a log does not use."""


def add_max_bad_fraction_option(parser: argparse._ActionsContainer) -> None:
    """Add the option `--max-bad-fraction`."""
    text = "largest share of damaged rows; above it, reading stops"
    add_options(parser, PrepareSettings, "max_bad_fraction", max_bad_fraction={"help": text})


def add_start_option(parser: argparse._ActionsContainer) -> None:
    """Add the option `--start`."""
    parser.add_argument(
        "--start",
        nargs=2,
        metavar=("RUN", "DATA"),
        help="start from this run of cowclip train and the prepared folder that it was trained on",
    )


def add_online_model_options(
    parser: argparse.ArgumentParser, what: argparse._ArgumentGroup
) -> argparse._ArgumentGroup:
    """Add the options of the model and its training; return the group of the model.

    Args:
        parser: of the command.
        what: its first group, for the options that must be given.
    """
    of_log = {
        "preset": {"shown": "criteo"},
        "clip": {"choices": choices.kernel_clips},
        "seed": {"help": "seed of all initial values, and of what dropout drops"},
    }
    add_options(what, RunSettings, "model", "batch_size")
    rates = parser.add_argument_group("batch and rates")
    add_options(rates, RunSettings, *RULE, "optimizer", "backend", **of_log)
    add_rate_options(rates, without=UNUSED_RATES)
    add_schedule_options(rates)
    model = parser.add_argument_group("model")
    add_options(model, RunSettings, "seed", "mlp", *HIDDEN, *LAYERS, **of_log)
    return model


def add_schedule_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of rates that fall."""
    known = choices.ONLINE_SCHEDULES
    text = "how both learning rates fall: {choices} (over --lr-events)"
    add_options(parser, RunSettings, "lr_schedule", lr_schedule={"help": text, "choices": known})
    add_options(parser, OnlineSettings, "lr_events")
    add_options(parser, RunSettings, "lr_floor", lr_floor={"shown": "0"})


def add_table_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of the growing tables."""
    names = ("capacity", "max_rows", "absent", "admission_filter", "window")
    add_options(parser, OnlineSettings, *names)


def online_settings_from_args(args: argparse.Namespace) -> OnlineSettings:
    """Build the settings of an online training from the arguments."""
    if args.clip is not None:
        one_of("clip", args.clip, choices.kernel_clips())
    one_of("lr_schedule", args.lr_schedule, choices.ONLINE_SCHEDULES)
    run = RunSettings(**model_settings(args) | {"update": "lazy", "epochs": 1})
    check_overrides_used(run, choices.kernel_clips())
    return settings_from(args, OnlineSettings, run=run)
