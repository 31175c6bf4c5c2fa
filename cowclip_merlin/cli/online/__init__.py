"""`cowclip online`: train on a log in order of time."""

from __future__ import annotations

import argparse
import importlib

HELP = "train on a log in order of time, with tables that grow (Monolith)"
EXAMPLES = """examples:
  cowclip generate --drift --rows 1000000 --days 7 --out events.csv
  cowclip online replay events.csv --features events.csv.yaml --out REPLAY \\
      --model deepfm --batch-size 1024 --batch-days 5 --sync never,1d,5h,1h,30min"""

COMMANDS = ("replay", "produce", "join", "train", "serve", "demo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a parser for each command in `COMMANDS`, which is a module of this package."""
    commands = parser.add_subparsers(
        dest="online_command", required=True, metavar="COMMAND", help="what to do"
    )
    for name in COMMANDS:
        module = importlib.import_module(f"cowclip_merlin.cli.online.{name}")
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run_online=module.run)


def run(args: argparse.Namespace) -> int:
    """Run one command and return its exit code."""
    return args.run_online(args)
