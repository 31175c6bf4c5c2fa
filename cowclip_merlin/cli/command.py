"""What a command is, its parser, and what several commands share."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from cowclip_merlin.checks import near
from cowclip_merlin.errors import InputError, require
from cowclip_merlin.settings import add_options, option, settings_from
from cowclip_merlin.system.console import QUIET, VERBOSE, note

OTHER_WORDS = {
    "predict": "score",
    "eval": "evaluate",
    "test": "evaluate",
    "importance": "explain",
    "--target": "--label",
    "--learning-rate": "--embedding-lr",
    "--test-size": "--test-fraction",
}
"""What other programs call commands and options of this one."""


class CommandParser(argparse.ArgumentParser):
    """A parser that prints errors in one line, without the usage.

    Attributes:
        add_arguments: adds the arguments when they are first needed, since those of all commands
            take a while; None: they are there.
        before_parsing: gets the arguments of a command first; None: nothing does.
        words: those to parse.
    """

    add_arguments: Callable[[], None] | None = None
    before_parsing: Callable[[Sequence[str]], None] | None = None
    words: Sequence[str] = ()

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
        self.words = args or ()
        if self.before_parsing:
            self.before_parsing(args)
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse an unknown command or choice, and name one that looks like it."""
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        hint = near(OTHER_WORDS.get(value, value), known)
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"unknown command {value!r}{hint}")
        listed = ", ".join(map(repr, known))
        raise argparse.ArgumentError(
            action, f"invalid choice: {value!r} (choose from {listed}){hint}"
        )

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2; an option may be missing as it is misspelt."""
        if "arguments are required" in message:
            given = [word.partition("=")[0] for word in self.words if word.startswith("--")]
            known = self._option_string_actions
            unknown = [x for x in given if not any(each.startswith(x) for each in known)]
            if unknown:
                message += f"; unknown {unknown[0]}"
                message += near(OTHER_WORDS.get(unknown[0], unknown[0]), known)
        end = "" if message.endswith("?") else ";"
        self.exit(2, f"{self.prog}: error: {message}{end} see {self.prog} --help\n")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its texts, its options, and what it does.

    Attributes:
        help: one line.
        settings: class of settings whose fields are the options; or a function that adds
            arguments to a `CommandParser`, where they are of several classes.
        run: does it, with settings of that class, or with the parsed arguments; it may return an
            exit code.
        examples: the end of the help.
        needs: modules of other packages without which it does nothing, not even in part.
        notes: whether it tells more than its result, which `--quiet` leaves out.
    """

    help: str
    settings: type | Callable[[Any], None]
    run: Callable[[Any], int | None]
    examples: str | None = None
    needs: tuple[str, ...] = ("merlin", "tensorflow")
    notes: bool = True

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options to the command's parser."""
        if isinstance(self.settings, type):
            add_options(parser, self.settings)
        else:
            self.settings(parser)

    def __call__(self, args: argparse.Namespace) -> int | None:
        """Run the command, and return its exit code.

        Raises:
            StackError: if a package that it needs is not installed.
        """
        require(*self.needs, by="this command")
        if isinstance(self.settings, type):
            return self.run(settings_from(args, self.settings))
        return self.run(args)


def complete_all(parser: CommandParser) -> None:
    """Add the arguments of a parser and of all its commands now."""
    parser.complete()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                complete_all(each)


def add_commands(
    parser: CommandParser, package: str, commands: Mapping[str, str], *, what: str, run: str
) -> None:
    """Add a parser for each command.

    Args:
        parser: that gets the commands.
        package: of their modules.
        commands: name of the command -> its module, and the name of its `Command` there.
        what: attribute of the parsed arguments that takes the command's name.
        run: attribute that takes the function to call.
    """
    added = parser.add_subparsers(dest=what, metavar="COMMAND", help="what to do")
    parser.set_defaults(**{run: lambda _: parser.print_help()})  # without a command
    for name, place in commands.items():
        module, _, constant = place.partition(":")
        command: Command = getattr(importlib.import_module(f"{package}.{module}"), constant)
        sub = added.add_parser(
            name,
            help=command.help,
            description=command.help,
            epilog=command.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_arguments = partial(_add_arguments, sub, command, run)


def _add_arguments(parser: CommandParser, command: Command, run: str) -> None:
    command.add_arguments(parser)
    parser.set_defaults(**{run: command})
    if parser._subparsers is not None:  # its commands have the options
        return
    told = parser.add_argument_group("output").add_mutually_exclusive_group()
    level = {"dest": "output_level", "action": "store_const"}
    if command.notes:
        text = "print the result and errors only"
        told.add_argument("-q", "--quiet", const=QUIET, help=text, **level)
    text = "also print TensorFlow's messages and how long each part takes"
    told.add_argument("-v", "--verbose", const=VERBOSE, help=text, **level)


def overwrite_option(what: str) -> Any:
    """Define the field of the switch that replaces a file or more."""
    return option(False, f"replace {what}")


STDIN = "standard input"


@contextmanager
def files_and_stdin(files: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the files with a copy of standard input for "-": parquet, JSON lines, CSV or TSV.

    Raises:
        InputError: if "-" is there twice, or a terminal is the standard input; and what the block
            raises, which names the standard input, not its copy.
    """
    if "-" not in files:
        yield files
        return
    if files.count("-") > 1 or sys.stdin.isatty():
        what = "is given twice" if files.count("-") > 1 else "is standard input, here a terminal"
        raise InputError(f"-: {what}; give files, or send rows as in cat new.csv | cowclip score")
    stream = sys.stdin.buffer
    with TemporaryDirectory(prefix="cowclip-") as folder:
        first = stream.readline(1 << 16)
        ends = {b"PAR1": ".parquet", b"{": ".jsonl"}
        text = ".tsv" if first.count(b"\t") > first.count(b",") else ".csv"
        copy = Path(folder) / f"stdin{ends.get(first[:4]) or ends.get(first[:1]) or text}"
        with copy.open("wb") as file:
            file.write(first)
            shutil.copyfileobj(stream, file)
        try:
            yield [str(copy) if name == "-" else name for name in files]
        except InputError as error:
            raise type(error)(str(error).replace(str(copy), STDIN)) from error


def json_option() -> Any:
    """Define the field of the switch that prints the result for programs."""
    return option(False, "print the result as one line of JSON, and nothing else")


def print_json(content: Any) -> None:
    """Print a result as one line of JSON; NaN, which JSON has not, becomes null."""

    def known(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: known(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [known(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    print(json.dumps(known(content), ensure_ascii=False))


def check_overwrite_used(given: Any, name: str) -> None:
    """Refuse `--overwrite` without the option that names what the command writes.

    Args:
        given: the command's settings or arguments.
        name: of this option, such as "json".

    Raises:
        InputError: if only `--overwrite` is given.
    """
    if given.overwrite and not getattr(given, name):
        words = f"remove it, or add --{name}"
        raise InputError(f"--overwrite has no effect without --{name}; {words}")


def print_served_epoch(*runs: str | Path | None) -> None:
    """Print for each run with early stopping which epoch it serves.

    Raises:
        InputError: if a run is damaged.
    """
    from cowclip_merlin.training.stopping.early_stopping import served_epoch

    for run in filter(None, runs):
        if words := served_epoch(run):
            note(f"{run}: {words}")
