"""`cowclip fit`: from a raw log to an evaluated run in one command."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.addresses import FilePath, is_address
from cowclip_merlin.cli.command import Command, CommandParser, overwrite_option
from cowclip_merlin.cli.train import check_replaced
from cowclip_merlin.errors import InputError
from cowclip_merlin.recipe import MODEL, MOST_EPOCHS, VALIDATION_FRACTION
from cowclip_merlin.settings import (
    Settings,
    add_options,
    device_option,
    option,
    option_of,
    parse_names,
    settings_from,
)
from cowclip_merlin.system.console import note
from cowclip_merlin.system.folders import set_aside
from cowclip_merlin.training.run_config import CONFIG
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.workflows.guess import IGNORE, ROLES
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.prepared.folder import DATA

_BY_ROWS = "by the rows"
_GUESSED = "guessed"


def _columns(help: str, default: tuple[str, ...] | None = ()) -> tuple[str, ...]:
    """Define the field of columns whose role is given."""
    return option(default, help, convert=parse_names, metavar="COLS", shown=_GUESSED)


@dataclass(frozen=True, kw_only=True)
class FitOptions(Settings):
    """What is fitted."""

    files: tuple[FilePath, ...] = option_of(PrepareSettings, "files")
    label: str = option(help="label column of 0 and 1", metavar="COL")
    out: str = option(help="run folder to write, with the prepared rows in RUN/data", metavar="RUN")
    categorical: tuple[str, ...] = _columns("id columns, as a,b,c")
    continuous: tuple[str, ...] = _columns("numeric columns, as x,y,z")
    multi: tuple[str, ...] = _columns("id columns with several values per row")
    vector: tuple[str, ...] = _columns("columns with a vector of numbers per row")
    time: tuple[str, ...] = _columns("column of dates or times; the last rows are the test rows")
    weight: tuple[str, ...] = _columns("column with the weights of the rows")
    ignore: tuple[str, ...] = _columns("columns to leave out")
    text: tuple[str, ...] = option_of(PrepareSettings, "text")
    separator: str | None = option_of(PrepareSettings, "separator", shown=_GUESSED)
    test: tuple[FilePath, ...] = option_of(PrepareSettings, "test")
    split: str | None = option_of(
        PrepareSettings, "split", default=None, shown="time if a column has it, else random"
    )
    test_fraction: float | None = option_of(PrepareSettings, "test_fraction", shown="0.1")
    max_bad_fraction: float | None = option_of(
        PrepareSettings,
        "max_bad_fraction",
        default=None,
        shown=f"{PrepareSettings.max_bad_fraction}",
    )
    model: str | None = option_of(RunSettings, "model", default=None, shown=MODEL)
    epochs: int | None = option_of(RunSettings, "epochs", default=None, shown=_BY_ROWS)
    batch_size: int | None = option_of(RunSettings, "batch_size", default=None, shown=_BY_ROWS)
    mlp: tuple[int, ...] = option_of(RunSettings, "mlp", default=(), shown="200,200")
    seed: int | None = option_of(RunSettings, "seed", default=None, shown=f"{RunSettings.seed}")
    refit: bool = option(
        False,
        f"hold out {VALIDATION_FRACTION} of the train rows to choose the number of epochs, at most "
        f"{MOST_EPOCHS} or --epochs, and train again on all of them",
    )
    overwrite: bool = overwrite_option("RUN if it is a run, and RUN/data; both stay if this fails")
    device: str = device_option()


def add_fit_options(parser: CommandParser) -> None:
    """Add the options of `cowclip fit`, those that matter most first."""
    names = ("files", "label", "out", "time", "ignore", "model", "epochs", "refit", "overwrite")
    add_options(parser.add_argument_group("what to fit"), FitOptions, *names)
    names = ("categorical", "continuous", "multi", "vector", "weight", "text", "separator")
    add_options(parser.add_argument_group("columns"), FitOptions, *names)
    names = ("test", "split", "test_fraction", "max_bad_fraction")
    add_options(parser.add_argument_group("rows"), FitOptions, *names)
    names = ("batch_size", "mlp", "seed", "device")
    add_options(parser.add_argument_group("training"), FitOptions, *names)


def run_fit(args: argparse.Namespace) -> int:
    """Prepare, train and evaluate; return 128 + the signal's number after a signal."""
    given = settings_from(args, FitOptions)
    from cowclip_merlin.fitting.fit import fit_run
    from cowclip_merlin.training import Stopped

    of_run = ("model", "epochs", "batch_size", "mlp", "seed")
    of_data = ("separator", "test", "split", "test_fraction", "text", "max_bad_fraction")
    settings, prepared = (
        {name: value for name in names if (value := getattr(given, name)) not in (None, ())}
        for names in (of_run, of_data)
    )
    try:
        with _replaced(given):
            fit_run(
                given.files,
                given.label,
                out=given.out,
                roles={role: getattr(given, role) for role in (*ROLES, IGNORE)},
                prepared=prepared,
                settings=settings,
                refit=given.refit,
                device=given.device,
            )
    except Stopped as stop:
        words = ["cowclip", "train", f"{given.out}/{DATA}", "--out", given.out, "--resume"]
        words += ["--refit"] if given.refit else []
        print(
            f"cowclip: stopped with a checkpoint; go on with {shlex.join(words)}", file=sys.stderr
        )
        return 128 + stop.signal_number
    words = ["cowclip", "score", given.out, "NEW", "--out", "scores.csv"]
    note(f"to score new rows: {shlex.join(words)}")
    return 0


@contextmanager
def _replaced(given: FitOptions) -> Iterator[None]:
    """Put the run aside that `--overwrite` replaces, with the rows that were prepared for it."""
    if not given.overwrite or is_address(given.out):
        yield
        return
    out = Path(given.out)
    check_replaced(out)
    for file in (*given.files, *given.test):
        if isinstance(file, Path) and out.resolve() in file.resolve().parents:
            raise InputError(f"{file}: is inside {out}, which would be replaced; use another --out")
    with set_aside(out, CONFIG, "run", with_results=(DATA,)):
        yield


FIT = Command(
    help="guess the columns of a raw log, prepare, train and evaluate it",
    settings=add_fit_options,
    run=run_fit,
    examples="""examples:
  cowclip fit log.csv --label click --out RUN
  cowclip fit log.csv --label click --out RUN --continuous age,visits --ignore session
  cowclip fit train.parquet --test test.parquet --label click --out RUN --model dcnv2

It looks at the first 50,000 rows, prints which column has which role and why, and the two commands
that do the same. Text and whole numbers are ids, numbers with fractions are numeric, lists have
several values per row. Whole numbers of many values are numeric, too, if their name says so, such
as age, or if they are unevenly spread. Of a date or time, the hour and the weekday are ids, and the
last tenth of the rows is held out. Columns with nearly one value a row are left out.""",
)
