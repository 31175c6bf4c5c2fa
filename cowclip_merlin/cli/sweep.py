"""`cowclip sweep`: base values chosen on validation rows, for experiments to use."""

from __future__ import annotations

import argparse

from cowclip_merlin.cli.experiment import add_session_options, run_session

HELP = "try a grid of base values, scored on validation rows, and keep the best for experiments"
EXAMPLES = """examples:
  cowclip sweep sweep_baseline sweep_r --data DATA --out RESULTS --seeds 1
  cowclip sweep mine.yaml --data DATA --dry-run

A tenth of the training rows is held out and scored; the test rows are not looked at. What was
chosen stands in RESULTS/tuned.json, and `cowclip experiment` with the same RESULTS uses it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `cowclip sweep`."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="names or YAML files of sweeps")
    add_session_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the sweeps; 128 + signal number after a signal."""
    return run_session(args, sweeps=True)
