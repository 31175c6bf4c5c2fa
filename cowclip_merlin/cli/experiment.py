"""`cowclip experiment`, `sweep` and `report`: tables and figures of the papers, on your data."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cowclip_merlin import choices
from cowclip_merlin.cli.command import Command, CommandParser, overwrite_option
from cowclip_merlin.cli.options import (
    HIDDEN,
    LAYERS,
    RULE,
    UNUSED_RATES,
    add_rate_options,
    add_schedule_options,
    add_table_options,
    online_settings_from_args,
)
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.settings import DataSettings, LogSettings
from cowclip_merlin.settings import Settings, add_options, option, settings_from
from cowclip_merlin.training.run_settings import RunSettings

if TYPE_CHECKING:
    from cowclip_merlin.experiments.definitions import Experiment, LogExperiment
    from cowclip_merlin.experiments.on_data.trainings import DataSession
    from cowclip_merlin.experiments.runs import ResultsSession

_PATHS = ("log", "features")


def add_common_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of experiments on prepared data and on a log."""
    names = ("name", "out", "seeds", "mlp")
    add_options(parser, DataSettings, *names, out={"default": "results"})
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs and their time, train nothing"
    )


def add_data_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of experiments on prepared data."""
    changes: dict[str, dict[str, Any]] = {name: {"default": None} for name in ("data", "lines")}
    changes["scale"] = {"default": "1"}
    names = ("data", "epochs", "scale", "update", "max_multiplier", "steps", "multi_task")
    names += ("experts", "lines", "device")
    add_options(parser, DataSettings, *names, **changes)


def add_log_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of experiments on a log."""
    of_log: dict[str, dict[str, Any]] = {
        "files": {"default": None},
        "features": {"default": None},
        "model": {"default": "deepfm"},
        "batch_size": {"default": 1024, "help": "events per step"},
        "preset": {"shown": "criteo"},
        "clip": {"choices": choices.kernel_clips},
    }
    add_options(parser, LogSettings, "files", "features", **of_log)
    add_options(parser, RunSettings, "model", "batch_size", **of_log)
    add_options(parser, LogSettings, "batch_days")
    add_options(parser, RunSettings, *RULE, "backend", **of_log)
    add_rate_options(parser, without=(*UNUSED_RATES, "initial_accumulator"))
    add_schedule_options(parser)
    add_options(parser, RunSettings, *HIDDEN, *LAYERS)
    add_options(parser, LogSettings, "max_bad_fraction")
    add_table_options(parser)


def refuse_options(
    args: argparse.Namespace, add: Callable[[argparse.ArgumentParser], None], why: str
) -> None:
    """Refuse options that a function adds and whose values are not the defaults.

    Raises:
        InputError: if one is given.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add(parser)
    for name, usual in vars(parser.parse_args([])).items():
        if getattr(args, name) != usual:
            raise InputError(f"--{name.replace('_', '-')} does not apply to {why}")


def data_settings_from_args(args: argparse.Namespace) -> DataSettings:
    """Build the settings of experiments on prepared data from the arguments."""
    if not args.data:
        raise InputError("--data is missing; give a folder that cowclip prepare wrote")
    return settings_from(args, DataSettings)


def log_settings_from_args(args: argparse.Namespace) -> LogSettings:
    """Build the settings of experiments on a log from the arguments."""
    # Each run has a seed of its own.
    model = online_settings_from_args(argparse.Namespace(**vars(args), seed=1))
    return settings_from(args, LogSettings, model=model)


def add_experiment_options(parser: CommandParser) -> None:
    """Add the arguments of `cowclip experiment`."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="names (see --list) or YAML files")
    parser.add_argument("--list", action="store_true", help="list the experiments and exit")
    add_common_options(parser)
    add_data_options(parser.add_argument_group("experiments on prepared data"))
    add_log_options(parser.add_argument_group("experiments on a log sorted by time"))


def run_experiments(args: argparse.Namespace) -> int:
    """Run the experiments; return 128 + the signal's number after a signal."""
    from cowclip_merlin.experiments.definitions import LogExperiment
    from cowclip_merlin.experiments.files import experiment_names, load_experiment, load_experiments

    if args.list:
        for name in experiment_names():
            print(f"{name:<18}{load_experiment(name).title}")
        return 0
    if not args.names:
        raise InputError("no experiment given; see cowclip experiment --list")
    experiments = load_experiments(args.names, sweeps=False)
    on_log = [each for each in experiments if isinstance(each, LogExperiment)]
    on_data = [each for each in experiments if not isinstance(each, LogExperiment)]
    if on_log and on_data:
        raise InputError(
            f"{on_data[0].cli_name} needs --data and {on_log[0].cli_name} needs --log; run them by "
            "two commands"
        )
    if on_data:
        needs = f"{on_data[0].cli_name}, which needs --data; remove it, or choose an experiment on"
        refuse_options(args, add_log_options, f"{needs} a log, such as monolith_sync")
        return _run_on_data(args, on_data)
    name = on_log[0].cli_name
    needs = f"{name}, which needs --log and --features; remove it, or choose an experiment on"
    refuse_options(args, add_data_options, f"{needs} prepared data, such as table2")
    for path in _PATHS:
        if not getattr(args, path):
            raise InputError(f"--{path} is missing; {name} needs a log and its features file")
    from cowclip_merlin.experiments.on_logs.log_runs import LogSession

    return _run_each(args, LogSession(log_settings_from_args(args)), on_log)


def _run_on_data(args: argparse.Namespace, experiments: Sequence[Experiment]) -> int:
    """Run experiments or sweeps on prepared data."""
    from cowclip_merlin.experiments.on_data.trainings import DataSession

    return _run_each(args, DataSession(data_settings_from_args(args)), experiments)


def _run_each(
    args: argparse.Namespace,
    session: ResultsSession,
    experiments: Sequence[Experiment | LogExperiment],
) -> int:
    """Run the experiments, or list their runs; return the exit code."""
    from cowclip_merlin.training import Stopped

    for experiment in experiments:
        session.runs(experiment).check()
    for experiment in experiments:
        runs = session.runs(experiment)
        if args.dry_run:
            print(runs.dry() + "\n")
            continue
        try:
            shown = runs.run()
        except Stopped as stop:
            print("cowclip: stopped; run the same command again to resume", file=sys.stderr)
            return 128 + stop.signal_number
        command = _train_command_text(session, experiment) if experiment.kind == "sweep" else ""
        print(f"\n{shown}{command}\n")
    return 0


def _train_command_text(session: DataSession, sweep: Experiment) -> str:
    """Return the command that trains with a sweep's best settings, for the end of its text."""
    from cowclip_merlin.cli.train import train_command

    chosen = session.runs(sweep).best_settings()
    if chosen is None:
        return ""
    return f"\n\nto train with the best settings:\n  {train_command(chosen)}"


EXPERIMENT = Command(
    help="reproduce a table or figure of a paper on your data, next to the paper's numbers",
    settings=add_experiment_options,
    run=run_experiments,
    examples="""examples:
  cowclip experiment --list
  cowclip experiment table2 --data DATA --dry-run
  cowclip experiment table2 table6 --data DATA --out RESULTS --seeds 3
  cowclip experiment table3 --data DATA --scale 1/64
  cowclip experiment mine.yaml --data DATA
  cowclip experiment monolith_sync admission expiry --log events.csv \\
      --features events.csv.yaml --out RESULTS --seeds 5

Runs with a result in RESULTS are not repeated, and a stopped run resumes from its checkpoint
or snapshot. Batch sizes and rates depend on the number of rows; see docs/experiments.md.""",
)


def add_sweep_options(parser: CommandParser) -> None:
    """Add the arguments of `cowclip sweep`."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="names or YAML files of sweeps")
    add_data_options(parser)
    add_common_options(parser)


def run_sweeps(args: argparse.Namespace) -> int:
    """Run the sweeps; return 128 + the signal's number after a signal."""
    from cowclip_merlin.experiments.files import load_experiments

    return _run_on_data(args, load_experiments(args.names, sweeps=True))


SWEEP = Command(
    help="score a grid of base values on validation rows, and keep the best for experiments",
    settings=add_sweep_options,
    run=run_sweeps,
    examples="""examples:
  cowclip sweep sweep_baseline sweep_r --data DATA --out RESULTS --seeds 1
  cowclip sweep mine.yaml --data DATA --dry-run

A tenth of the training rows is held out and scored; the test rows are not read. The best values
are written to RESULTS/tuned.json. `cowclip experiment` with the same RESULTS uses them.""",
)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Settings):
    """What the page shows, and where it goes."""

    results: tuple[str, ...] = option(
        help="folders that cowclip experiment wrote", flag="results", nargs="+", metavar="RESULTS"
    )
    out: str = option(help="page to write", metavar="FILE")
    overwrite: bool = overwrite_option("FILE if it exists")


def run_report(given: ReportOptions) -> None:
    """Write the page and print a summary."""
    from cowclip_merlin.experiments.report import write_report

    summary = write_report(given.results, given.out, overwrite=given.overwrite)
    print(f"{given.out}: {summary}")


REPORT = Command(
    notes=False,
    help="make one self-contained HTML page from the results of experiments",
    needs=("pandas",),
    settings=ReportOptions,
    run=run_report,
    examples="""examples:
  cowclip report RESULTS --out report.html
  cowclip report criteo avazu --out report.html""",
)
