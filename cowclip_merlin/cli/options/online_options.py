"""Command line options of training on a log, which several commands share."""

from __future__ import annotations

import argparse

from cowclip_merlin import choices
from cowclip_merlin.checks import one_of
from cowclip_merlin.cli.options.model_options import (
    HIDDEN,
    LAYERS,
    RULE,
    add_rate_options,
    check_overrides_used,
    model_settings,
)
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.settings import add_options, settings_from
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.workflows.prepare_settings import PrepareSettings

UNUSED_RATES = ("warmup_epochs", "lambda_rel", "lambda_abs")
"""Rates that training on a log does not use."""


def add_max_bad_fraction_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--max-bad-fraction`."""
    text = "largest share of damaged rows; above it, reading stops"
    add_options(parser, PrepareSettings, "max_bad_fraction", max_bad_fraction={"help": text})


def add_start_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--start`."""
    parser.add_argument(
        "--start",
        nargs=2,
        metavar=("RUN", "DATA"),
        help="start from this run of cowclip train and the prepared folder that it was trained on",
    )


def add_online_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model and its training."""
    of_log = {
        "preset": {"shown": "criteo"},
        "clip": {"choices": choices.kernel_clips},
        "seed": {"help": "seed of all initial values, and of what dropout drops"},
    }
    names = ("model", "batch_size", *RULE, "optimizer", "backend")
    add_options(parser, RunSettings, *names, **of_log)
    add_rate_options(parser, without=UNUSED_RATES)
    add_schedule_options(parser)
    add_options(parser, RunSettings, "seed", "mlp", *HIDDEN, *LAYERS, **of_log)


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
