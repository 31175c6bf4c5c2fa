"""The command `cowclip`: parse arguments, call the library, turn mistakes into one line.

Exit codes: 0 done, 2 wrong input, 1 a fault of this program, 130/143 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

from cowclip_merlin import __version__
from cowclip_merlin.errors import InputError, error_message
from cowclip_merlin.system.signals import exit_on_sigterm

COMMANDS = (
    "generate",
    "prepare",
    "train",
    "evaluate",
    "export",
    "scale",
    "bench",
    "experiment",
    "sweep",
    "inspect",
    "report",
)


class CommandParser(argparse.ArgumentParser):
    """A parser whose complaints are one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser with one sub-parser per module of this package named in `COMMANDS`."""
    parser = CommandParser(
        prog="cowclip",
        description="Train click-through-rate models with very large batches.",
    )
    parser.add_argument("--version", action="version", version=f"cowclip {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"cowclip_merlin.cli.{name}")
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _escape_unencodable_output()
    args, unknown = build_parser().parse_known_args(argv)
    if unknown:
        return _fail(f"unknown: {' '.join(unknown)}; see cowclip {args.command} --help")
    try:
        _check_paths(vars(args))
        with exit_on_sigterm():
            code = args.run(args) or 0
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # the reader of our output has seen enough, as in `| head`
        # Python flushes once more at its end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("cowclip: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        words = error_message(error, target=_output_path(vars(args)))
        return _fail(words) if words else _crash()


def _escape_unencodable_output() -> None:
    """Let standard output show as an escape what its encoding lacks, as standard error does.

    A column or a file may have any name, which must not end a run that has done its work.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # not None, nor what a program put in its place
        sys.stdout.reconfigure(errors="backslashreplace")


def _check_paths(given: Mapping[str, object]) -> None:
    """An empty path, as from an unset variable of the shell, would mean the current folder."""
    for name in ("out", "data", "run_folder", "files", "results", "like", "lines"):
        value = given.get(name)
        if value == "" or (isinstance(value, list) and "" in value):
            raise InputError(f"{name} is empty; give a value, or set the shell's variable")


def _output_path(given: Mapping[str, object]) -> str | None:
    """The path that the command was to write."""
    paths = (given.get(name) for name in ("out", "predictions", "json"))
    return next((str(path) for path in paths if path), None)


def _fail(message: str) -> int:
    print(f"cowclip: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _crash() -> int:
    traceback.print_exc()
    print("cowclip: this is a fault of cowclip, please report it", file=sys.stderr)
    return 1
