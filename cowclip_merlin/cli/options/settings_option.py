"""Settings of a YAML file (`--settings`) or of a run (`--from`), which other options replace."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cowclip_merlin.addresses import path_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.recipe import HELD_OUT

if TYPE_CHECKING:
    from cowclip_merlin.cli.options.commands import CommandParser


def add_settings_option(parser: CommandParser, group: argparse._ActionsContainer) -> None:
    """Add the option to a `CommandParser`, which also takes over the settings of a run.

    Args:
        parser: of a command whose options have the names of the file's keys.
        group: of the parser, for the option.
    """
    text = "YAML file of settings, as cowclip tune writes it; options given here replace them"
    group.add_argument("--settings", metavar="FILE", help=text)
    parser.before_parsing = partial(_use_known, parser)


def _use_known(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Make the values of the run and the file the defaults of the other options.

    Raises:
        InputError: if the file or the run is wrong.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--settings", "--from", "--out"):
        first.add_argument(name, nargs="?")
    first.add_argument("--resume", action="store_true")
    given = vars(first.parse_known_args(words)[0])
    values: dict[str, Any] = {}
    if given["from"] or given["resume"]:
        values = _of_run(given)
    if (path := given["settings"]) is not None:
        values |= _of_file(path)
    if not values:
        return
    options = dict(values)
    if "mlp" in options:
        options["mlp"] = ",".join(map(str, options["mlp"]))
    parser.set_defaults(**options, settings_of_file=values)


def _of_file(path: str) -> dict[str, Any]:
    if not path:
        raise InputError("settings is empty; give a value, or set the shell variable")
    from cowclip_merlin.experiments.tuning.settings_file import read_settings

    return dict(read_settings(path_of(path)))


def _of_run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the run to go on from, or of a resumed one its own."""
    from cowclip_merlin.training.run_config import RunConfig, local_run
    from cowclip_merlin.training.starting.going_on import settings_to_go_on

    if not given["resume"]:
        values = settings_to_go_on(given["from"]).as_dict()
        for name in HELD_OUT:  # of the new data, as without `--from`
            del values[name]
    else:
        try:
            values = RunConfig.load(local_run(given["out"] or "")).settings.as_dict()
        except InputError:  # `train` tells what is wrong, also to the other workers
            return {}
    return values.pop("overrides") | values
