"""Options of the commands whose options are of several classes."""

from __future__ import annotations

import argparse

from cowclip_merlin.settings import add_options
from cowclip_merlin.training.run_settings import RunOptions


def add_overwrite_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option `--overwrite`.

    Args:
        parser: the command's parser.
        what: metavar of the file to replace.
    """
    parser.add_argument("--overwrite", action="store_true", help=f"replace {what} if it exists")


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--device`."""
    add_options(parser, RunOptions, "device")
