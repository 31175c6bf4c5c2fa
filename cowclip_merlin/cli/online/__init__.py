"""`cowclip online`: train on a log or a stream in time order, and serve the model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from cowclip_merlin.cli.command import Command, CommandParser, add_commands

COMMANDS: Mapping[str, str] = {
    "replay": "logs:REPLAY",
    "produce": "logs:PRODUCE",
    "join": "logs:JOIN",
    "train": "stream:TRAIN",
    "rollback": "stream:ROLLBACK",
    "serve": "serving:SERVE",
    "demo": "stream:DEMO",
}
"""Command -> its module, and the name of its `Command` there."""


def add_online_commands(parser: CommandParser) -> None:
    """Add a parser for each command in `COMMANDS`."""
    add_commands(parser, __name__, COMMANDS, what="online_command", run="run_online")


def run_online(args: argparse.Namespace) -> int | None:
    """Run one command and return its exit code."""
    return args.run_online(args)


ONLINE = Command(
    help="train on an event log or stream with growing embedding tables, and serve the model",
    needs=(),
    settings=add_online_commands,
    run=run_online,
    examples="""examples:
  cowclip online demo
  cowclip online train --help""",
)
