"""Add commands to a parser, each of them a module."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NoReturn


class CommandParser(argparse.ArgumentParser):
    """A parser that prints errors in one line, without the usage.

    Attributes:
        add_arguments: adds the arguments when they are first needed, since those of all commands
            take a while; None: they are there.
        before_parsing: gets the arguments of a command first; None: nothing does.
    """

    add_arguments: Callable[[], None] | None = None
    before_parsing: Callable[[Sequence[str]], None] | None = None

    def complete(self) -> None:
        """Add the arguments now."""
        add, self.add_arguments = self.add_arguments, None
        if add:
            add()

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments, after a command has looked at them."""
        self.complete()
        if self.before_parsing:
            self.before_parsing(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def complete_all(parser: CommandParser) -> None:
    """Add the arguments of a parser and of all its commands now."""
    parser.complete()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                complete_all(each)


def add_commands(
    parser: CommandParser, package: str, names: Sequence[str], *, what: str, run: str
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
        sub.add_arguments = partial(_add_arguments, sub, module, run)


def _add_arguments(parser: CommandParser, module: ModuleType, run: str) -> None:
    module.add_arguments(parser)
    parser.set_defaults(**{run: module.run})
