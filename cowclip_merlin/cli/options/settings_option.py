"""The option `--settings`: a YAML file of settings, which other options replace."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import path_of
from cowclip_merlin.errors import InputError

if TYPE_CHECKING:
    from cowclip_merlin.cli.options.commands import CommandParser


def add_settings_option(parser: CommandParser) -> None:
    """Add the option to a `CommandParser`.

    Args:
        parser: of a command whose options have the names of the file's keys.
    """
    text = "YAML file of settings, as cowclip tune writes it; options given here replace them"
    parser.add_argument("--settings", metavar="FILE", help=text)
    parser.before_parsing = partial(_use_file, parser)


def _use_file(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Make the values of the file the defaults of the other options.

    Raises:
        InputError: if the file is wrong.
    """
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--settings", nargs="?")
    path = first.parse_known_args(words)[0].settings
    if path is None:
        return
    if not path:
        raise InputError("settings is empty; give a value, or set the shell variable")
    from cowclip_merlin.experiments.tuning.settings_file import read_settings

    values = read_settings(path_of(path))
    options = dict(values)
    if "mlp" in options:
        options["mlp"] = ",".join(map(str, options["mlp"]))
    parser.set_defaults(**options, settings_of_file=values)
    for action in parser._actions:  # argparse has no other way to make an option optional
        if action.dest in values:
            action.required = False
