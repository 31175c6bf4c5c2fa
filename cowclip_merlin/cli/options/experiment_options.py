"""Command line options of experiments: those of prepared data, those of a log, and both."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cowclip_merlin import choices
from cowclip_merlin.cli.options.common_options import add_device_option
from cowclip_merlin.cli.options.model_options import (
    LAYERS,
    RULE,
    add_rate_options,
)
from cowclip_merlin.cli.options.online_options import (
    UNUSED_RATES,
    add_batch_days_option,
    add_max_bad_fraction_option,
    add_table_options,
    online_settings_from_args,
)
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import add_options, parse_integers
from cowclip_merlin.training.run_settings import RunSettings

if TYPE_CHECKING:
    from cowclip_merlin.experiments.online.settings import LogSettings
    from cowclip_merlin.experiments.session_settings import SessionSettings

_PATHS = ("log", "features")


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of experiments and sweeps on prepared data."""
    add_data_options(parser)
    add_common_options(parser)


def add_common_options(parser: Any) -> None:
    """Add the options of experiments on prepared data and on a log."""
    parser.add_argument("--name", metavar="TEXT", help="name of the data set in the tables")
    with_default = {
        "--out": ("results", "RESULTS", "results folder"),
        "--seeds": (3, "N", "runs of each cell"),
        "--mlp": ("400,400,400", "N,N", "hidden widths"),
    }
    _add_with_defaults(parser, with_default)
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs and their time, train nothing"
    )


def add_data_options(parser: Any) -> None:
    """Add the options of experiments on prepared data."""
    parser.add_argument("--data", metavar="DATA", help="folder that cowclip prepare wrote")
    parser.add_argument(
        "--epochs", type=int, metavar="N", help="passes over the rows (default: 10)"
    )
    with_default = {
        "--scale": ("1", "S", "fraction of the rows, like 1/64"),
        "--update": ("exact", "UPDATE", ", ".join(choices.UPDATES)),
    }
    _add_with_defaults(parser, with_default)
    sizes = {
        "--max-multiplier": "largest batch / base batch (default: 32; 128 from 20.6M rows)",
        "--steps": "minimum steps per epoch at the largest batch, below 20.6M rows (default: 50)",
    }
    for flag, text in sizes.items():
        parser.add_argument(flag, type=int, metavar="N", help=text)
    parser.add_argument(
        "--lines", metavar="LABELS", help="run only these lines of the table: a;b (default: all)"
    )
    add_device_option(parser)


def _add_with_defaults(parser: Any, options: dict[str, tuple[Any, str, str]]) -> None:
    for flag, (default, metavar, text) in options.items():
        text = f"{text} (default: %(default)s)"
        parser.add_argument(flag, type=type(default), default=default, metavar=metavar, help=text)


def add_log_options(parser: Any) -> None:
    """Add the options of experiments on a log."""
    parser.add_argument(
        "--log", nargs="+", metavar="LOG", help="CSV, TSV (also compressed) or parquet, by time"
    )
    parser.add_argument("--features", metavar="YAML", help="features file of the log")
    of_log: dict[str, dict[str, Any]] = {
        "model": {"default": "deepfm"},
        "batch_size": {"default": 1024, "help": "events per step"},
        "preset": {"shown": "criteo"},
        "clip": {"choices": choices.kernel_clips},
    }
    add_options(parser, RunSettings, "model", "batch_size", **of_log)
    add_batch_days_option(parser, 5.0)
    add_options(parser, RunSettings, *RULE, "backend", **of_log)
    add_rate_options(parser, without=UNUSED_RATES)
    add_options(parser, RunSettings, *LAYERS)
    add_max_bad_fraction_option(parser)
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
    from cowclip_merlin.experiments.session_settings import SessionSettings

    if not args.data:
        raise InputError("--data is missing; give a folder that cowclip prepare wrote")
    return SessionSettings(
        data=Path(args.data),
        out=Path(args.out),
        name=args.name,
        scale=parse_fraction(args.scale),
        seeds=args.seeds,
        epochs=args.epochs,
        update=args.update,
        max_multiplier=args.max_multiplier,
        steps=args.steps,
        device=args.device,
        mlp=parse_integers("--mlp", args.mlp, like="400,400,400"),
        lines=_parse_lines(args.lines or ""),
    )


def _parse_lines(text: str) -> tuple[str, ...]:
    """Split labels.

    >>> _parse_lines("no scaling; CowClip")
    ('no scaling', 'CowClip')
    """
    return tuple(filter(None, map(str.strip, text.split(";"))))


def log_settings_from_args(args: argparse.Namespace) -> LogSettings:
    """Build the settings of experiments on a log from the arguments."""
    from cowclip_merlin.experiments.online.settings import LogSettings

    # Each run has a seed of its own.
    model = online_settings_from_args(argparse.Namespace(**vars(args), seed=1))
    return LogSettings(
        files=tuple(map(Path, args.log)),
        features=Path(args.features),
        out=Path(args.out),
        model=model,
        name=args.name,
        seeds=args.seeds,
        batch_days=args.batch_days,
        max_bad_fraction=args.max_bad_fraction,
        options=tuple(_words(args)),
    )


def _words(args: argparse.Namespace) -> list[str]:
    """Return the words of the options that change the results."""
    given = given_options(args, add_common_options) | given_options(args, add_log_options)
    paths = {"--out", "--dry-run", *(f"--{name}" for name in _PATHS)}
    words: list[str] = []
    for flag, value in given.items():
        if flag not in paths:
            words += [flag] if value is True else [flag, _word(value)]
    return words


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def parse_fraction(text: str) -> float:
    """Parse a fraction like 1/64 or 0.5.

    Raises:
        InputError: if the text is anything else.

    >>> parse_fraction("1/64")
    0.015625
    """
    from fractions import Fraction

    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise InputError(f"--scale {text!r} is not a fraction; give one like 1/64 or 0.5") from None
