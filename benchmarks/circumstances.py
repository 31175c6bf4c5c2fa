"""What the benchmarks share: options, complaints, exit codes, and what their JSON says besides.

Exit codes: 0 done, 2 wrong input, 1 a fault of the benchmark, 130 interrupted.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from cowclip_merlin.bench import LEAST_VOCABULARY, hardware
from cowclip_merlin.cli import Parser
from cowclip_merlin.errors import InputError, words_of
from cowclip_merlin.files import refuse_no_file, write_json
from cowclip_merlin.training.records import versions


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
        words = _words(error)
        if words is None:
            raise
        leave(2, f"error: {words}")


def _words(error: Exception) -> str | None:
    """What a person did wrong, in words; None for a fault of ours."""
    if isinstance(error, InputError):
        return str(error)
    # By name, since the kernels' benchmark does without TensorFlow.
    if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        return f"not enough memory for these sizes, give smaller ones ({error!s:.80})"
    return words_of(error) if isinstance(error, OSError) else None


def leave(code: int, line: str) -> NoReturn:
    """End the process with a line on stderr."""
    print(" ".join(line.split()), file=sys.stderr)
    raise SystemExit(code) from None


def refuse_no_files(*files: Path | None) -> None:
    """Refuse, before the work, files that cannot be written after it; None is one not asked for.

    Raises:
        InputError: one cannot be written, or is named twice.
    """
    given = [file for file in files if file is not None]
    for file in given:
        refuse_no_file(file)
    once({"files to write": given})


def at_least_one(counts: Mapping[str, int | Sequence[int]]) -> None:
    """Refuse counts below 1.

    Args:
        counts: of each option its number or numbers.

    Raises:
        InputError: one is 0 or negative.

    >>> at_least_one({"--rounds": 1, "--mlp": (8, 0)})
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --mlp is 0; give 1 or more
    """
    for option, given in counts.items():
        for count in (given,) if isinstance(given, int) else given:
            if count < 1:
                raise InputError(f"{option} is {count}; give 1 or more")


def above_zero(values: Mapping[str, float]) -> None:
    """Refuse what is not a finite number above 0.

    Args:
        values: of each option its number.

    Raises:
        InputError: one is not.

    >>> above_zero({"--seconds": float("nan")})
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --seconds is nan; give a number above 0
    """
    for option, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"{option} is {value:g}; give a number above 0")


def once(lists: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a value that comes twice.

    Args:
        lists: of each option its values.

    Raises:
        InputError: one does.

    >>> once({"--batch-sizes": (8, 16, 8)})
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --batch-sizes 8,16,8: give every value once
    """
    for option, values in lists.items():
        if len(set(values)) < len(values):
            raise InputError(f"{option} {','.join(map(str, values))}: give every value once")


def enough_ids(option: str, *vocabularies: int) -> None:
    """Refuse vocabularies that the fields of `bench.field_sizes` cannot share.

    Raises:
        InputError: one is too small, or too large for ids of 32 bits.

    >>> enough_ids("--ids", 1000, 3)
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --ids is 3; give 104 or more, below 2**31
    """
    for vocabulary in vocabularies:
        if not LEAST_VOCABULARY <= vocabulary < 2**31:
            raise InputError(
                f"{option} is {vocabulary}; give {LEAST_VOCABULARY} or more, below 2**31"
            )


def among(option: str, values: Sequence[str], choices: Sequence[str]) -> None:
    """Refuse names that are not among the choices.

    Raises:
        InputError: one is not.

    >>> among("--updates", ("exact", "eager"), ("dense", "exact"))
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --updates: unknown 'eager'; choose of dense, exact
    """
    for value in values:
        if value not in choices:
            raise InputError(f"{option}: unknown {value!r}; choose of {', '.join(choices)}")


def command_line(script: str, arguments: Sequence[str] | None) -> str:
    """The command; folders from the root on are cut, since they say nothing elsewhere.

    >>> command_line("benchmarks/baseline.py", ["--rows", "9", "--json=/some/where/a.json"])
    'python benchmarks/baseline.py --rows 9 --json=a.json'
    """
    given = sys.argv[1:] if arguments is None else arguments
    words = [re.sub(r"^(--[\w-]+=)?/.*/", r"\1", word) for word in given]
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *words])


def circumstances(
    script: str,
    arguments: Sequence[str] | None,
    load: float,
    *,
    machine: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Command, date, hardware, versions, and how busy the machine was before.

    Args:
        script: `__file__` of the benchmark.
        arguments: those of `main`; None for the process's own.
        load: mean of running processes in the minute before the first measurement.
        machine: the hardware, where TensorFlow is not to be asked for it.
    """
    return {
        "command": command_line(script, arguments),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load_before": load,
        "hardware": hardware() if machine is None else dict(machine),
        "versions": versions(),
    }


def finish(result: Mapping[str, Any], shown: str, file: Path | None) -> None:
    """Print the result and write it, each even if the other cannot be done.

    Args:
        result: with its circumstances.
        shown: the result as text.
        file: for the JSON; None for none.
    """
    try:
        print(shown)
        print(f"{result['hardware']}, TensorFlow {result['versions'].get('tensorflow')}")
        sys.stdout.flush()
    finally:
        if file is not None:
            write_json(file, result)


def load_now() -> float:
    """Mean of running processes in the last minute."""
    return round(os.getloadavg()[0], 2)
