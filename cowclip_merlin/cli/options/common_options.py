"""Command line options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

from cowclip_merlin.settings import add_options
from cowclip_merlin.training.run_settings import RunOptions


def add_overwrite_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option `--overwrite`.

    Args:
        parser: the command's parser.
        what: metavar of the file to replace.
    """
    parser.add_argument("--overwrite", action="store_true", help=f"replace {what} if it exists")


def check_overwrite_used(args: argparse.Namespace, option: str) -> None:
    """Refuse `--overwrite` without the option that names what the command writes.

    Args:
        args: the command's arguments.
        option: name of this option, such as "--json".

    Raises:
        InputError: if only `--overwrite` is given.
    """
    from cowclip_merlin.errors import InputError

    if args.overwrite and not getattr(args, option.removeprefix("--")):
        raise InputError(f"--overwrite has no effect without {option}; remove it, or add {option}")


def print_served_epoch(*runs: str | Path | None) -> None:
    """Print for each run with early stopping which epoch it serves.

    Raises:
        InputError: if a run is damaged.
    """
    from cowclip_merlin.training.stopping.early_stopping import served_epoch

    for run in filter(None, runs):
        if words := served_epoch(run):
            print(f"{run}: {words}")


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--device`."""
    add_options(parser, RunOptions, "device")
