"""Ask whether CowClip's effect holds on several variants of a log: train, and compare in one table.

    python examples/robustness.py DATA [DATA ...] --out RESULTS [--seeds 1] [--epochs 3]
        [--mlp 400,400,400] [--steps 50] [--csv FILE] [--overwrite]

Each DATA is a prepared folder: the same log with other columns, another limit of the label, another
seed of the split, or another log. `cowclip experiment robustness scaling` trains each of them at
the base batch, at 8 times and at 32 times: without scaling, with CowClip, with CowClip's rates
without its clip, and with the rules `sqrt_star` and `sde`. Then it prints the tables of
`robustness_tables.py`, with one row per folder.
Run it again to continue: finished runs are not repeated. The rates follow from the number of rows,
unless RESULTS has values that `cowclip sweep` chose for a folder. RESULTS/results.csv keeps all
runs; RESULTS/tables has the table of the last folder only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from types import MappingProxyType

import numpy as np
from robustness_tables import CLIP, DIFFERENCES, PROPERTIES, Variant, tables, write_csv

from cowclip_merlin import InputError
from cowclip_merlin.errors import error_message
from cowclip_merlin.experiments.commands import run_experiment
from cowclip_merlin.experiments.definitions import load_experiment
from cowclip_merlin.experiments.planning.planned_run import PlannedRun
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.experiments.session import Session
from cowclip_merlin.experiments.session_settings import SessionSettings
from cowclip_merlin.settings import parse_integers
from cowclip_merlin.system.files import check_writable
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.counts import FIRST_VALUE, read_counts

Results = Mapping[PlannedRun, Result]

LINES = MappingProxyType(
    {
        "no scaling": "none",
        "CowClip": "cowclip",
        "CowClip without its clip": "unclipped",
        "sqrt_star": "sqrt_star",
        "sde": "sde",
        "sde with CowClip's clip": "sde+clip",
    }
)
"""Label of a line of the experiment -> name here."""
EXPERIMENTS = ("robustness", "scaling")
MULTIPLIERS = MappingProxyType({1: 1, 8: 8, "largest": 32})
MEMORY = 1000
"""Steps that Adam's second moment remembers, 1 / (1 - beta_2) of the small batch."""


def describe_ids(data: PreparedData, batch: int) -> tuple[float, float, float]:
    """Return the distinct ids per training row, and two shares of the ids.

    The first is that of the ids that occur at most twice. The second is that of the ids that Adam
    forgets at this batch: they occur less than once in the `MEMORY` steps that it remembers.
    """
    counts = [read_counts(data, field)["count"].to_numpy() for field in data.tables]
    every, rows = np.concatenate([count[FIRST_VALUE:] for count in counts]), data.rows["train"]
    forgotten = every * MEMORY * batch < rows
    return every.size / rows, float(np.mean(every <= 2)), float(np.mean(forgotten))


def make_variant(data: PreparedData, results: Results) -> Variant:
    """Compare the runs of one folder.

    Raises:
        InputError: if a run has diverged.
    """
    last, best = _means(data, results, "auc"), _means(data, results, "best_auc")
    batch = next(iter(results.values())).base_batch_size
    steps = min(r.steps_per_epoch for r in results.values())
    overfitting = best["none x1"] - last["none x1"]
    return Variant(
        name=data.path.name,
        rows=data.rows["train"],
        properties=dict(
            zip(PROPERTIES, (*describe_ids(data, batch), steps, overfitting), strict=True)
        ),
        auc=last["none x1"],
        gains=_gains(last),
        best=_gains(best),
    )


def _means(data: PreparedData, results: Results, score: str) -> dict[str, float]:
    """Return the mean of a score in % over the seeds, by name of the run."""
    found: dict[str, list[float]] = {}
    for run, result in results.items():
        if result.status != "done":
            raise InputError(f"{data.path}: the run {result.run_id} has diverged; leave it out")
        name = f"{LINES[run.label]} x{MULTIPLIERS[run.multiplier]}"
        found.setdefault(name, []).append(100 * getattr(result, score))
    return {name: mean(values) for name, values in found.items()}


def _gains(auc: Mapping[str, float]) -> dict[str, float]:
    gains = {name: auc[name] - auc["none x1"] for name in DIFFERENCES}
    for name in CLIP:
        _, multiplier = name.split()
        gains[name] = auc[f"cowclip {multiplier}"] - auc[f"unclipped {multiplier}"]
    return gains


def make_sessions(args: argparse.Namespace) -> list[Session]:
    """Open all folders, so that a wrong one ends the command before the first training.

    Raises:
        InputError: if a folder is not prepared or has too few rows, two folders have one name, or a
            setting is wrong.
    """
    folders = [data.absolute() for data in args.data]  # `.` has a name then
    names = [folder.name for folder in folders]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name}: two folders have this name; rename one")
    sessions = [Session(_settings(folder, args)) for folder in folders]
    for session in sessions:
        for name in EXPERIMENTS:
            session.runs(load_experiment(name))
    return sessions


def _settings(data: Path, args: argparse.Namespace) -> SessionSettings:
    return SessionSettings(
        data=data,
        out=args.out,
        name=data.name,
        seeds=args.seeds,
        epochs=args.epochs,
        mlp=parse_integers("--mlp", args.mlp, like="400,400,400"),
        steps=args.steps,
        max_multiplier=max(MULTIPLIERS.values()),
    )


def train(session: Session) -> Variant:
    """Train the missing runs of a folder, and compare all of its runs."""
    results: dict[PlannedRun, Result] = {}
    for experiment in map(load_experiment, EXPERIMENTS):
        print(run_experiment(session, experiment), flush=True)
        results |= session.results(experiment)
    return make_variant(session.context.data, results)


def main(argv: Sequence[str] | None = None) -> int:
    """Train and print the tables; return 2 if the input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+", type=Path, metavar="DATA", help="prepared folders")
    parser.add_argument("--out", type=Path, required=True, metavar="RESULTS", help="results folder")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds (default: 1)")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="epochs (default: 3)")
    widths = "hidden widths (default: 400,400,400)"
    parser.add_argument("--mlp", default="400,400,400", metavar="N,N", help=widths)
    steps = "minimum steps per epoch at the largest batch (default: 50)"
    parser.add_argument("--steps", type=int, default=50, metavar="N", help=steps)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the table here")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    args = parser.parse_args(argv)
    try:
        if args.csv is not None:
            check_writable(args.csv, overwrite=args.overwrite)
        elif args.overwrite:
            raise InputError("--overwrite has no effect without --csv; remove it, or add --csv")
        variants = [train(session) for session in make_sessions(args)]
        if args.csv is not None:
            write_csv(args.csv, variants)
    except (InputError, OSError) as error:
        words = error_message(error)
        if words is None:
            raise
        print(f"robustness: error: {words}", file=sys.stderr)
        return 2
    print(f"\n{tables(variants)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
