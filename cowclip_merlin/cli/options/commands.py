"""Add commands to a parser, each of them a module."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any


def add_commands(
    parser: argparse.ArgumentParser, package: str, names: Sequence[str], *, what: str, run: str
) -> None:
    """Add a parser for each command, which is a module of a package.

    A module has `HELP`, `EXAMPLES`, `add_arguments(parser)` and `run(args)`.

    Args:
        parser: that gets the commands.
        package: of the modules.
        names: of the commands and of their modules.
        what: attribute of the parsed arguments that takes the command's name.
        run: attribute that takes the function to call.
    """
    options: dict[str, Any] = {"dest": what, "required": True, "metavar": "COMMAND"}
    commands = parser.add_subparsers(**options, help="what to do")
    for name in names:
        module = importlib.import_module(f"{package}.{name}")
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(**{run: module.run})
