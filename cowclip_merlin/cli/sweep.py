"""`cowclip sweep`: choose base values on validation rows for later experiments."""

from __future__ import annotations

import argparse

from cowclip_merlin.cli.experiment import run_on_data
from cowclip_merlin.cli.options.experiment_options import add_session_options

HELP = "score a grid of base values on validation rows, and keep the best for experiments"
EXAMPLES = """examples:
  cowclip sweep sweep_baseline sweep_r --data DATA --out RESULTS --seeds 1
  cowclip sweep mine.yaml --data DATA --dry-run

A tenth of the training rows is held out and scored; the test rows are not read. The best values
are written to RESULTS/tuned.json. `cowclip experiment` with the same RESULTS uses them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip sweep`."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="names or YAML files of sweeps")
    add_session_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the sweeps; return 128 + the signal's number after a signal."""
    from cowclip_merlin.experiments.definitions import load_experiments

    return run_on_data(args, load_experiments(args.names, sweeps=True))
