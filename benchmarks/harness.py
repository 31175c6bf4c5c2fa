"""What the benchmarks share: a command from settings, the JSON record, turns in rounds, tables.

Exit codes: 0 success, 2 wrong input, 1 a bug of the benchmark, 130 interrupted.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from cowclip_merlin import choices
from cowclip_merlin.checks import check_unique
from cowclip_merlin.cli.command import CommandParser
from cowclip_merlin.errors import InputError, error_message, with_options
from cowclip_merlin.settings import add_options, option, options_of, settings_from
from cowclip_merlin.system.files import check_writable, write_json
from cowclip_merlin.system.machine import hardware, versions
from cowclip_merlin.types import JsonObject

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

COWCLIP = "import sys; from cowclip_merlin.cli import main; sys.exit(main(sys.argv[1:]))"
"""Code for `python -c`: the command `cowclip` of the Python that runs it."""


def batch_sizes(*default: int) -> Any:
    """Define the field of the batch sizes."""
    return option(default, "rows per step", flag="--batch-sizes", at_least=1, unique=True)


def updates(*default: str) -> Any:
    """Define the field of the updates."""
    known = choices.UPDATES
    return option(default, "some of {choices}", choices=known, metavar="A,B,C", unique=True)


def layers() -> Any:
    """Define the field of the hidden layers."""
    return option((400, 400, 400), "widths of the hidden layers", at_least=1)


def environment(contestant: str) -> str:
    """Return the environment of a contestant, its name up to a hyphen."""
    return contestant.partition("-")[0]


def environment_option(contestants: Collection[str]) -> Any:
    """Define the field of the environments of contestants that do not run in this one."""
    names = ", ".join(dict.fromkeys(map(environment, contestants)))
    what = f"bin/python of an environment: of {names}"
    return option((), what, metavar="NAME=PATH,...")


def environments(given: Sequence[str], contestants: Collection[str]) -> dict[str, Path]:
    """Return environment -> its interpreter, from the values of their option."""
    found, known = {}, dict.fromkeys(map(environment, contestants))
    for each in given:
        name, _, path = each.partition("=")
        if name not in known or not path:
            names = ", ".join(known)
            raise InputError(f"--python {each}: give NAME=PATH, with a NAME of {names}")
        found[name] = program(f"--python {name}", path)
    return found


def program(flag: str, name: str) -> Path:
    """Return the path of a program; its symbolic links stay, as they select an environment.

    Raises:
        InputError: if there is no such program.
    """
    if (found := shutil.which(name)) is None:
        raise InputError(f"{flag} {name}: no such program; give a bin/python")
    return Path(found).absolute()


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A measurement as a command: options, settings, measurement, text and JSON.

    `finish` is called when all is written: it draws a figure, or refuses the result.
    """

    settings: type  # if it has a field `device`, TensorFlow uses the chosen device
    measure: Callable[[Any], JsonObject]  # of the settings
    text: Callable[[JsonObject], str] | Mapping[str, str]  # or columns of a table of "results"
    about: str | None = None  # help text; None: the docstring of `measure`
    finish: Callable[[Any, JsonObject], None] | None = None

    def parser(self, script: str = "") -> argparse.ArgumentParser:
        """Make the parser of the command."""
        about = inspect.cleandoc(self.about or self.measure.__doc__ or "")
        parser = _parser(about, script or Path(inspect.getfile(self.measure)).name)
        add_options(parser, self.settings)
        what = "also write the result to this file"
        parser.add_argument("--json", type=Path, metavar="FILE", help=what)
        parser.add_argument("--overwrite", action="store_true", help="replace existing files")
        return parser

    def main(self, arguments: Sequence[str] | None = None, script: str = "") -> None:
        """Measure, print and write JSON; print an error in one line."""
        parser = self.parser(script)
        words = sys.argv[1:] if arguments is None else arguments
        with one_line_errors([x for each in parser._actions for x in each.option_strings], words):
            args = parser.parse_args(arguments)
            settings = settings_from(args, self.settings)
            known = options_of(self.settings)
            outputs = [getattr(settings, name) for name, given in known.items() if given.output]
            check_output_files(args.json, *outputs, overwrite=args.overwrite)
            if "device" in known:
                from cowclip_merlin.training.build import choose_device

                settings = replace(settings, device=choose_device(settings.device))
            load = round(os.getloadavg()[0], 2)
            result = {"load_before": load, "command": command_line(parser.prog, words)}
            result = record(self.measure(settings)) | result
            try:
                print(self.shown(result))
                tf = result["versions"].get("tensorflow")
                print(f"{result['hardware']}, TensorFlow {tf}", flush=True)
            finally:  # also if nobody reads the text
                if args.json is not None:
                    write_json(args.json, result)
            if self.finish:
                self.finish(settings, result)

    def shown(self, result: JsonObject) -> str:
        """Return the text of a result."""
        if isinstance(self.text, Mapping):
            return table(self.text, result["results"])
        return self.text(result)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Several measurements in one script: the first word of the command line chooses one."""

    about: str | None  # the docstring of the script
    script: str
    parts: Mapping[str, Benchmark]  # by its word

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Measure one part, with the options after its name."""
        words = list(sys.argv[1:] if arguments is None else arguments)
        parser = _parser(self.about, self.script)
        what = "what to measure; --help after it lists its options"
        parser.add_argument("part", choices=tuple(self.parts), help=what)
        part = parser.parse_args(words[:1]).part
        self.parts[part].main(words[1:], f"{self.script} {part}")


def _parser(about: str | None, script: str) -> argparse.ArgumentParser:
    shown = argparse.RawDescriptionHelpFormatter
    return CommandParser(prog=script, description=about, formatter_class=shown)


@contextmanager
def one_line_errors(options: Collection[str], argv: Sequence[str]) -> Iterator[None]:
    """Exit with one line on stderr: with 2 if the input is wrong, with 130 after Ctrl-C."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        exit_with(130, "interrupted; no result was written")
    except Exception as error:
        words = error_message(error)
        if words is None:
            raise
        exit_with(2, f"error: {with_options(words, options, argv)}")


def exit_with(code: int, line: str) -> NoReturn:
    """End the process with a line on stderr."""
    print(" ".join(line.split()), file=sys.stderr)
    raise SystemExit(code) from None


def check_output_files(*files: Path | None, overwrite: bool = False) -> None:
    """Refuse before the measurement files that cannot be written, or are given twice."""
    given = [file for file in files if file is not None]
    if overwrite and not given:
        raise InputError("--overwrite has no effect without a file to write; remove it")
    for file in given:
        check_writable(file, overwrite=overwrite)
    check_unique({"files to write": given})


def command_line(script: str, words: Sequence[str]) -> str:
    """Return the command without absolute folders, users and passwords.

    >>> command_line("workers.py", ["--rows", "9", "--json=/some/where/a.json"])
    'python benchmarks/workers.py --rows 9 --json=a.json'
    >>> command_line("step.py growing", ["--work", "/tmp/a,redis://:secret@host/b"])
    'python benchmarks/step.py growing --work a,redis://host/b'
    >>> command_line("optimizers.py", ["--python", "torch=/some/where/python"])
    'python benchmarks/optimizers.py --python torch=python'
    """
    shared = [",".join(map(_shared, word.split(","))) for word in words]
    return shlex.join(["python", *f"benchmarks/{script}".split(), *shared])


def _shared(value: str) -> str:
    """Return a value without what belongs to this machine or user."""
    value = re.sub(r"^([\w-]+=)?/.*/", r"\1", value)
    return re.sub(r"://[^/]*@", "://", value)


def record(result: JsonObject) -> JsonObject:
    """Add date, hardware and versions to a result, which may have hardware and more versions."""
    return {
        **result,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hardware": result["hardware"] if "hardware" in result else hardware(),
        "versions": versions() | result.get("versions", {}),
    }


def in_turn(
    cases: Mapping[Key, Callable[[], Value]], rounds: int, *, warm_up: int = 0
) -> dict[Key, list[Value]]:
    """Call every case once in each round, so that a slow minute affects every case.

    The values of the warm-up rounds before are dropped.

    >>> numbers = iter(range(9))
    >>> in_turn({"a": lambda: next(numbers), "b": lambda: next(numbers)}, 2, warm_up=1)
    {'a': [2, 4], 'b': [3, 5]}
    """
    from tqdm import tqdm

    values: dict[Key, list[Value]] = {key: [] for key in cases}
    turns = [(number, key) for number in range(warm_up + rounds) for key in cases]
    for number, key in tqdm(turns, desc="turns", disable=None, leave=False):
        value = cases[key]()
        if number >= warm_up:
            values[key].append(value)
    return values


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the ratio of two cases in every round.

    >>> ratios([2.0, 9.0], [1.0, 3.0])
    [2.0, 3.0]
    """
    return [value / other for value, other in zip(values, others, strict=True)]


def summary(values: Sequence[float]) -> JsonObject:
    """Return the median, the least and the most.

    >>> summary([3.0, 1.0, 2.0])
    {'median': 2.0, 'least': 1.0, 'most': 3.0}
    """
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Format the median with the range.

    >>> spread([3.0, 1.0, 2.0])
    '2.0 (1.0 to 3.0)'
    """
    numbers = (statistics.median(values), min(values), max(values))
    middle, low, high = (f"{x:,.{digits}f}" for x in numbers)
    return f"{middle} ({low} to {high})"


def markdown(head: Sequence[str], alignment: str, rows: Iterable[Sequence[str]]) -> str:
    """Format a table, whose columns are aligned to the left or right: "l" or "r".

    >>> print(markdown(["who", "rows/s"], "lr", [("step", "12")]))
    | who | rows/s |
    |:--|--:|
    | step | 12 |
    """
    rules = "|".join({"l": ":--", "r": "--:"}[each] for each in alignment)
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([first, f"|{rules}|", *others])


def table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Format results: name of a column -> how its cells are made of a row; numbers to the right.

    >>> print(table({"who": "{who}", "ms": "{ms:.1f}"}, [{"who": "step", "ms": 12.0}]))
    | who | ms |
    |:--|--:|
    | step | 12.0 |
    """
    cells = [[form.format_map(row) for form in columns.values()] for row in rows]
    first = cells[0] if cells else columns
    sides = ["r" if x[:1] in "+-0123456789" else "l" for x in first]
    return markdown(tuple(columns), "".join(sides), cells)


def output_of(what: str, command: Sequence[object], **options: Any) -> str:
    """Run a command, and return what it prints; an `InputError` has its last words."""
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, **options)
    if done.returncode:
        raise InputError(f"{what} failed: {last_line(done.stderr)}")
    return done.stdout


def answer_of(
    what: str, python: Path, module: str, *words: object, log: Path | None = None, **options: Any
) -> JsonObject:
    """Run a module of `contestants` with another Python, and return its last line, a JSON object.

    `log` takes what it prints; an `InputError` has the last line of its errors.
    """
    # As a module: as a file, deepctr.py would hide the package deepctr.
    command = [str(python), "-m", f"contestants.{module}", *map(str, words)]
    # This process keeps some GPU memory, so TensorFlow must not allocate all of it.
    quiet = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}
    given = {"cwd": Path(__file__).parent, "env": os.environ | quiet} | options
    done = subprocess.run(command, capture_output=True, text=True, **given)
    if log is not None:
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not said:
        raise InputError(f"{what} failed: {last_line(done.stderr)}")
    return json.loads(said[-1])


def last_line(text: str) -> str:
    """Return the last line of a program's errors."""
    return (text.strip().splitlines() or ["it printed no error"])[-1]


def run_timed(command: Sequence[str], log: Path) -> tuple[float, float, float]:
    """Measure the seconds, the peak memory in MB and the CPU seconds of one process."""
    started = time.perf_counter()
    with log.open("w", encoding="utf-8") as words:
        # In a separate process group, so that only this process receives Ctrl-C.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=words, start_new_session=True
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    if status:
        last = last_line(log.read_text(encoding="utf-8"))
        raise InputError(f"{log.stem}: a run failed: {last}")
    seconds, cpu = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
    return seconds, usage.ru_maxrss / 1024, cpu
