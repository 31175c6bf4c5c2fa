"""Command line options of experiments: those of prepared data, those of a log, and both."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from cowclip_merlin import choices
from cowclip_merlin.cli.options.model_options import (
    HIDDEN,
    LAYERS,
    RULE,
    add_rate_options,
)
from cowclip_merlin.cli.options.online_options import (
    UNUSED_RATES,
    add_schedule_options,
    add_table_options,
    online_settings_from_args,
)
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.settings import LogSettings, SessionSettings
from cowclip_merlin.settings import add_options, settings_from
from cowclip_merlin.training.run_settings import RunSettings

_PATHS = ("log", "features")


def add_common_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of experiments on prepared data and on a log."""
    names = ("name", "out", "seeds", "mlp")
    add_options(parser, SessionSettings, *names, out={"default": "results"})
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs and their time, train nothing"
    )


def add_data_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of experiments on prepared data."""
    changes: dict[str, dict[str, Any]] = {name: {"default": None} for name in ("data", "lines")}
    changes["scale"] = {"default": "1"}
    names = ("data", "epochs", "scale", "update", "max_multiplier", "steps", "multi_task")
    names += ("experts", "lines", "device")
    add_options(parser, SessionSettings, *names, **changes)


def add_log_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of experiments on a log."""
    of_log: dict[str, dict[str, Any]] = {
        "files": {"default": None},
        "features": {"default": None},
        "model": {"default": "deepfm"},
        "batch_size": {"default": 1024, "help": "events per step"},
        "preset": {"shown": "criteo"},
        "clip": {"choices": choices.kernel_clips},
    }
    add_options(parser, LogSettings, "files", "features", **of_log)
    add_options(parser, RunSettings, "model", "batch_size", **of_log)
    add_options(parser, LogSettings, "batch_days")
    add_options(parser, RunSettings, *RULE, "backend", **of_log)
    add_rate_options(parser, without=(*UNUSED_RATES, "initial_accumulator"))
    add_schedule_options(parser)
    add_options(parser, RunSettings, *HIDDEN, *LAYERS)
    add_options(parser, LogSettings, "max_bad_fraction")
    add_table_options(parser)


def given_options(
    args: argparse.Namespace, add: Callable[[argparse.ArgumentParser], None]
) -> dict[str, Any]:
    """Return the options that a function adds and whose values are not the defaults, by flag."""
    parser = argparse.ArgumentParser(add_help=False)
    add(parser)
    usual = vars(parser.parse_args([]))
    found = {name: getattr(args, name) for name in usual if getattr(args, name) != usual[name]}
    return {f"--{name.replace('_', '-')}": value for name, value in found.items()}


def refuse_log_options(args: argparse.Namespace, name: str) -> None:
    """Refuse options of a log for an experiment on prepared data.

    Raises:
        InputError: if one is given.
    """
    given = given_options(args, add_log_options)
    if given:
        raise InputError(
            f"{next(iter(given))} does not apply to {name}, which needs --data; remove it, or "
            "choose an experiment on a log, such as monolith_sync"
        )


def check_log_options(args: argparse.Namespace, name: str) -> None:
    """Refuse options of prepared data for an experiment on a log, and missing ones.

    Raises:
        InputError: if one is given or missing.
    """
    given = given_options(args, add_data_options)
    if given:
        raise InputError(
            f"{next(iter(given))} does not apply to {name}, which needs --log and --features; "
            "remove it, or choose an experiment on prepared data, such as table2"
        )
    for option in _PATHS:
        if not getattr(args, option):
            raise InputError(f"--{option} is missing; {name} needs a log and its features file")


def session_settings_from_args(args: argparse.Namespace) -> SessionSettings:
    """Build the settings of experiments on prepared data from the arguments."""
    if not args.data:
        raise InputError("--data is missing; give a folder that cowclip prepare wrote")
    return settings_from(args, SessionSettings)


def log_settings_from_args(args: argparse.Namespace) -> LogSettings:
    """Build the settings of experiments on a log from the arguments."""
    # Each run has a seed of its own.
    model = online_settings_from_args(argparse.Namespace(**vars(args), seed=1))
    return settings_from(args, LogSettings, model=model)
