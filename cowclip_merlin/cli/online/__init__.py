"""`cowclip online`: train on a log or a stream in time order, and serve the model."""

from __future__ import annotations

import argparse

from cowclip_merlin.cli.options.commands import CommandParser, add_commands

HELP = "train on an event log or stream with growing embedding tables, and serve the model"
EXAMPLES = """examples:
  cowclip online demo
  cowclip online train --help"""

COMMANDS = ("replay", "produce", "join", "train", "rollback", "serve", "demo")


def add_arguments(parser: CommandParser) -> None:
    """Add a parser for each command in `COMMANDS`."""
    add_commands(parser, __name__, COMMANDS, what="online_command", run="run_online")


def run(args: argparse.Namespace) -> int:
    """Run one command and return its exit code."""
    return args.run_online(args)
