"""What the benchmarks share at the prompt: options, complaints in one line, exit codes.

Exit codes: 0 done, 2 wrong input, 1 a fault of the benchmark, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from cowclip_merlin.checks import once
from cowclip_merlin.cli import Parser
from cowclip_merlin.errors import words_of
from cowclip_merlin.system.files import refuse_no_file


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The docstring as it stands, and the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def parser(about: str | None, *, device: bool = True, json: bool = True) -> argparse.ArgumentParser:
    """A parser whose help is the benchmark's docstring and whose complaints are one line.

    Args:
        about: the docstring.
        device: whether there is an option for TensorFlow's device.
        json: whether there is an option for a file of the result.
    """
    made = Parser(description=about, formatter_class=_Help)
    if device:
        choices = ("auto", "cpu", "gpu")
        what = "for TensorFlow; auto: a GPU if it sees one"
        made.add_argument("--device", default="auto", choices=choices, help=what)
    if json:
        made.add_argument("--json", type=Path, metavar="FILE", help="write the result here, too")
        replace = "replace files that are there"
        made.add_argument("--overwrite", action="store_true", help=replace)
    return made


def option(made: argparse.ArgumentParser, flag: str, default: Any, what: str) -> None:
    """Add an option that has a default.

    Args:
        made: the parser.
        flag: like `--rounds`.
        default: a number, a name, a folder, or several values, which are given between commas.
        what: the line of the help.

    >>> made = argparse.ArgumentParser()
    >>> option(made, "--mlp", (8, 4), "widths")
    >>> made.parse_args([]).mlp
    '8,4'
    """
    if isinstance(default, Sequence) and not isinstance(default, str):
        made.add_argument(flag, default=",".join(map(str, default)), metavar="A,B,C", help=what)
        return
    metavar = {int: "N", float: "X", str: "NAME"}.get(type(default), "DIR")
    kind = Path if metavar == "DIR" else type(default)
    made.add_argument(flag, type=kind, default=default, metavar=metavar, help=what)


@contextmanager
def orderly() -> Iterator[None]:
    """Ends a benchmark in one line on stderr if the input is wrong or Ctrl-C was pressed.

    Raises:
        SystemExit: with code 2 for wrong input, 130 after an interrupt.

    >>> with orderly():
    ...     raise SystemExit(3)
    Traceback (most recent call last):
    ...
    SystemExit: 3
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `| head`; nothing more can be said
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        leave(130, "interrupted; no result was written")
    except Exception as error:
        words = words_of(error)
        if words is None:
            raise
        leave(2, f"error: {words}")


def leave(code: int, line: str) -> NoReturn:
    """End the process with a line on stderr."""
    print(" ".join(line.split()), file=sys.stderr)
    raise SystemExit(code) from None


def refuse_no_files(*files: Path | None, overwrite: bool = False) -> None:
    """Refuse, before the work, files that cannot be written after it; None is one not asked for.

    Args:
        files: to write.
        overwrite: whether to replace files that are there.

    Raises:
        InputError: one cannot be written, is there already, or is named twice.
    """
    given = [file for file in files if file is not None]
    for file in given:
        refuse_no_file(file, overwrite=overwrite)
    once({"files to write": given})
