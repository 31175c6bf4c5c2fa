"""The command `cowclip`: parse arguments, call the library, report errors in one line.

Exit codes: 0 success, 2 wrong input, 1 a bug in this program, 75 a worker of a training was lost,
130/143 interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from cowclip_merlin import __version__
from cowclip_merlin.addresses import is_address
from cowclip_merlin.checks import near
from cowclip_merlin.cli.command import OTHER_WORDS, CommandParser, add_commands, complete_all
from cowclip_merlin.errors import (
    ERROR,
    LOST_ANOTHER,
    WRONG_INPUT,
    InputError,
    WorkerLost,
    error_message,
    with_options,
)
from cowclip_merlin.system.console import output_level
from cowclip_merlin.system.signals import exit_on_sigterm

COMMANDS: Mapping[str, str] = {
    "fit": "fit:FIT",
    "prepare": "data:PREPARE",
    "train": "train:TRAIN",
    "score": "scoring:SCORE",
    "serve": "online.serving:SERVE_RUN",
    "tune": "tune:TUNE",
    "evaluate": "scoring:EVALUATE",
    "explain": "explain:EXPLAIN",
    "export": "scoring:EXPORT",
    "adopt": "data:ADOPT",
    "online": "online:ONLINE",
    "completion": "completion:COMPLETION",
    "inspect": "scoring:INSPECT",
    "generate": "data:GENERATE",
    "scale": "bench:SCALE",
    "bench": "bench:BENCH",
    "experiment": "experiment:EXPERIMENT",
    "sweep": "experiment:SWEEP",
    "report": "experiment:REPORT",
}
"""Command -> its module, and the name of its `Command` there.

The usual ones come first, those of experiments last.
"""

_WRITE_TO_ADDRESSES = ("prepare", "train", "evaluate", "score", "tune", "online replay")
_ON_THIS_MACHINE: Mapping[str, str] = {
    "names": "NAME",
    "results": "RESULTS",
    "stream_run": "RUN",
    **{name: f"`{name}`" for name in ("work", "state", "token_file", "tls_cert", "tls_key")},
}
"""Arguments with a path that is no address -> their name for errors."""


def build_parser(*, complete: bool = True) -> CommandParser:
    """Build the parser, with one sub-parser for each command in `COMMANDS`.

    Args:
        complete: add the arguments of all commands; False adds those of a command when it parses.
    """
    parser = CommandParser(
        prog="cowclip",
        description="Train click-through-rate models with very large batches.",
    )
    parser.add_argument("--version", action="version", version=f"cowclip {__version__}")
    add_commands(parser, __name__, COMMANDS, what="command", run="run")
    if complete:
        complete_all(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args, words = argparse.Namespace(), list(sys.argv[1:] if argv is None else argv)
    try:
        _escape_unencodable_output()
        parser = build_parser(complete=False)
        args, unknown = parser.parse_known_args(words)
        args.argv = words
        if unknown:
            command = _command(vars(args))
            hint = _elsewhere(unknown[0]) or _near_option(unknown, parser) or ";"
            return _fail(
                f"unknown arguments: {' '.join(unknown)}{hint} see cowclip {command} --help"
            )
        _check_paths(vars(args))
        with exit_on_sigterm(), output_level(getattr(args, "output_level", None)):
            code = args.run(args) or 0
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # the reader of the output has closed it, as `| head` does
        # Python flushes again at exit; that must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("cowclip: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        message = error_message(error, target=_output_path(vars(args)))
        if message is None:
            return _crash()
        message = with_options(message, _all_options(), words)
        return _fail(message, code=LOST_ANOTHER if isinstance(error, WorkerLost) else WRONG_INPUT)


def _escape_unencodable_output() -> None:
    """Make standard output escape characters that its encoding lacks, as standard error does.

    Columns and files may have any name. Printing one must not fail after the work is done.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # may be None, or replaced by a program
        sys.stdout.reconfigure(errors="backslashreplace")


def _check_paths(given: Mapping[str, object]) -> None:
    """Refuse empty paths: an unset shell variable gives one, which means the current folder."""
    for name in ("out", "data", "run_folder", "stream_run", "files", "results", "like", "lines"):
        value = given.get(name)
        if value == "" or (isinstance(value, list) and "" in value):
            shown = _ON_THIS_MACHINE.get(name, name)
            raise InputError(f"{shown} is empty; give a value, or set the shell variable")
    for name, shown in _ON_THIS_MACHINE.items():
        _check_on_this_machine(given.get(name), shown)
    if given.get("generate"):
        _check_on_this_machine(given.get("features"), "`features` of `generate`")
    out = _output_path(given)
    if out is not None:
        _check_output_path(out, _command(given))


def _check_on_this_machine(value: object, shown: str) -> None:
    """Refuse an address, or one of several."""
    for path in value if isinstance(value, list) else [value]:
        if is_address(path):
            raise InputError(f"{path}: {shown} takes no address; give a path on this machine")


def _command(given: Mapping[str, object]) -> str:
    """Return the command's words, such as "online train"."""
    return " ".join(str(given[x]) for x in ("command", "online_command") if given.get(x))


def _check_output_path(path: str, command: str) -> None:
    """Refuse a link that leads to itself, and an address if the command writes to none."""
    if is_address(path):
        if command not in _WRITE_TO_ADDRESSES:
            raise InputError(f"{path}: {command} writes to no address; give a path on this machine")
        return
    try:
        Path(path).resolve()
    except RuntimeError:
        raise InputError(f"{path}: is a link that leads to itself; remove it") from None


def _output_path(given: Mapping[str, object]) -> str | None:
    """Return the path that the command writes."""
    paths = (given.get(name) for name in ("out", "predictions", "json"))
    return next((str(path) for path in paths if path and path is not True), None)


@cache
def _all_options() -> frozenset[str]:
    """Return the options of all commands."""
    return frozenset(_options_of(build_parser()))


def _near_option(unknown: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Return words about the option that the first unknown one was perhaps meant to be.

    The commands that have not parsed have no options yet.
    """
    name = unknown[0].partition("=")[0]
    known = OTHER_WORDS.get(name, name)
    return near(known, _options_of(parser)) if name.startswith("--") else ""


def _elsewhere(word: str) -> str:
    """Return words about the first commands that have an option which this one has not."""
    name = word.partition("=")[0]
    found = [
        command
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for command, each in action.choices.items()
        if name in each._option_string_actions
    ]
    return f"; an option of cowclip {' and '.join(found[:2])};" if found else ""


def _options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options of a parser and of its commands."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _options_of(each)


def _fail(message: str, *, code: int = WRONG_INPUT) -> int:
    print(f"{ERROR}{' '.join(message.split())}", file=sys.stderr)
    return code


def _crash() -> int:
    traceback.print_exc()
    print("cowclip: this is a bug in cowclip; please report it", file=sys.stderr)
    return 1
