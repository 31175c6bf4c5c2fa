"""`cowclip experiment`: reproduce tables and figures of the paper, and run further ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import choices
from cowclip_merlin.cli.options.common_options import add_device_option, parse_integers

if TYPE_CHECKING:
    from cowclip_merlin.experiments.definitions import Experiment
    from cowclip_merlin.experiments.session import Session

HELP = "reproduce a table or figure of the paper on your data, next to the paper's numbers"
EXAMPLES = """examples:
  cowclip experiment --list
  cowclip experiment table2 --data DATA --dry-run
  cowclip experiment table2 table6 --data DATA --out RESULTS --seeds 3
  cowclip experiment table3 --data DATA --scale 1/64
  cowclip experiment mine.yaml --data DATA

Runs with a result in RESULTS are not repeated, and a stopped run resumes from its checkpoint.
Batch sizes and rates depend on the number of rows; see docs/experiments.md."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip experiment`."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="names (see --list) or YAML files")
    parser.add_argument("--list", action="store_true", help="list the experiments and exit")
    add_session_options(parser)


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `experiment` and `sweep` share."""
    parser.add_argument("--data", metavar="DATA", help="folder that cowclip prepare wrote")
    parser.add_argument("--name", metavar="TEXT", help="name of the data set in the tables")
    parser.add_argument(
        "--epochs", type=int, metavar="N", help="passes over the rows (default: 10)"
    )
    with_default = {
        "--out": ("results", "RESULTS", "results folder"),
        "--scale": ("1", "S", "fraction of the rows, like 1/64"),
        "--seeds": (3, "N", "runs of each cell"),
        "--update": ("exact", "UPDATE", ", ".join(choices.UPDATES)),
        "--mlp": ("400,400,400", "N,N", "hidden widths"),
    }
    for flag, (default, metavar, text) in with_default.items():
        text = f"{text} (default: %(default)s)"
        parser.add_argument(flag, type=type(default), default=default, metavar=metavar, help=text)
    sizes = {
        "--max-multiplier": "largest batch / base batch (default: 32; 128 from 20.6M rows)",
        "--steps": "minimum steps per epoch at the largest batch, below 20.6M rows (default: 50)",
    }
    for flag, text in sizes.items():
        parser.add_argument(flag, type=int, metavar="N", help=text)
    parser.add_argument(
        "--lines", metavar="LABELS", help="run only these lines of the table: a;b (default: all)"
    )
    add_device_option(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs and their time, train nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Run the experiments; return 128 + the signal's number after a signal."""
    from cowclip_merlin.errors import InputError
    from cowclip_merlin.experiments.definitions import experiment_names, load_experiment

    if args.list:
        for name in experiment_names():
            print(f"{name:<18}{load_experiment(name).title}")
        return 0
    if not args.names:
        raise InputError("no experiment given; see cowclip experiment --list")
    return run_session(args, sweeps=False)


def run_session(args: argparse.Namespace, *, sweeps: bool) -> int:
    """Run the named experiments or sweeps on the data."""
    from cowclip_merlin.experiments.commands import dry_run, run_experiment
    from cowclip_merlin.experiments.definitions import load_experiments
    from cowclip_merlin.experiments.preflight import check_experiment
    from cowclip_merlin.experiments.session import Session
    from cowclip_merlin.training import Stopped

    experiments = load_experiments(args.names, sweeps=sweeps)
    session = Session(session_settings_from_args(args))
    for experiment in experiments:
        check_experiment(session, experiment)
    for experiment in experiments:
        if args.dry_run:
            print(dry_run(session, experiment) + "\n")
            continue
        try:
            shown = run_experiment(session, experiment)
        except Stopped as stop:
            print("cowclip: stopped; run the same command again to resume", file=sys.stderr)
            return 128 + stop.signal_number
        print("\n" + shown + "\n")
        if experiment.kind == "sweep":
            _print_train_command(session, experiment)
    return 0


def _print_train_command(session: Session, sweep: Experiment) -> None:
    """Print the command that trains with a sweep's best settings."""
    from cowclip_merlin.cli.train import train_command

    chosen = session.best_settings(sweep)
    if chosen is not None:
        print(f"to train with the best settings:\n  {train_command(chosen)}\n")


def session_settings_from_args(args: argparse.Namespace):  # noqa: ANN201
    """Build the session's settings from the arguments."""
    from cowclip_merlin.errors import InputError
    from cowclip_merlin.experiments.session_settings import SessionSettings

    if not args.data:
        raise InputError("--data is missing; give a folder that cowclip prepare wrote")
    return SessionSettings(
        data=Path(args.data),
        out=Path(args.out),
        name=args.name,
        scale=parse_fraction(args.scale),
        seeds=args.seeds,
        epochs=args.epochs,
        update=args.update,
        max_multiplier=args.max_multiplier,
        steps=args.steps,
        device=args.device,
        mlp=parse_integers("--mlp", args.mlp, like="400,400,400"),
        lines=tuple(args.lines.split(";")) if args.lines else (),
    )


def parse_fraction(text: str) -> float:
    """Parse a fraction like 1/64 or 0.5.

    Raises:
        InputError: if the text is anything else.

    >>> parse_fraction("1/64")
    0.015625
    """
    from fractions import Fraction

    from cowclip_merlin.errors import InputError

    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise InputError(f"--scale {text!r} is not a fraction; give one like 1/64 or 0.5") from None
