"""`cowclip online rollback`: go back to an older snapshot of a run."""

from __future__ import annotations

import argparse
from datetime import datetime

HELP = "list the snapshots of a stopped training, or go back to one"
EXAMPLES = """examples:
  cowclip online rollback RUN
  cowclip online rollback RUN --to 400000

After it, start cowclip online train as before: it trains the events since that snapshot again, or
leaves them out with --on-restart skip. Servers follow. The newer snapshots stay, renamed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip online rollback`."""
    parser.add_argument("stream_run", metavar="RUN", help="folder that cowclip online train wrote")
    text = "the snapshot to go back to, by its number (default: only list them)"
    parser.add_argument("--to", type=int, metavar="EVENTS", help=text)


def run(args: argparse.Namespace) -> None:
    """List the snapshots, or go back."""
    from cowclip_merlin.online.training.stream_folder import roll_back, snapshot_times

    if args.to is None:
        for number, time in snapshot_times(args.stream_run).items():
            print(f"{number:>15,} events, written {datetime.fromtimestamp(time):%Y-%m-%d %H:%M:%S}")
        return
    newer = roll_back(args.stream_run, args.to)
    left = ", ".join(f"{number:,}" for number in newer) or "none"
    print(f"{args.stream_run}: the next start goes on after {args.to:,} events; set aside: {left}")
