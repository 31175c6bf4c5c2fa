"""`cowclip online replay`: score a log with serving copies synced at different intervals."""

from __future__ import annotations

import argparse
import sys

from cowclip_merlin.cli.command import Command, CommandParser
from cowclip_merlin.cli.options.online_options import (
    add_max_bad_fraction_option,
    add_online_model_options,
    add_start_option,
    add_table_options,
    online_settings_from_args,
)
from cowclip_merlin.online.replaying.settings import ReplaySettings
from cowclip_merlin.settings import add_options, settings_from


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `cowclip online replay`."""
    parser.add_argument(
        "files", nargs="+", metavar="LOG", help="CSV, TSV (also compressed) or parquet"
    )
    parser.add_argument("--features", required=True, metavar="YAML", help="features file")
    parser.add_argument("--out", required=True, metavar="OUT", help="folder to write")
    _add_replay_options(parser)
    add_online_model_options(parser)
    add_table_options(parser)


def _add_replay_options(parser: argparse.ArgumentParser) -> None:
    usual = {"batch_days": {"default": 1.0}, "sync": {"default": ("never", "1d", "1h")}}
    add_options(parser, ReplaySettings, **usual)
    add_start_option(parser)
    parser.add_argument("--resume", action="store_true", help="go on from the last snapshot")
    add_max_bad_fraction_option(parser)


def run(args: argparse.Namespace) -> int:
    """Replay; return 128 + the signal's number after a signal, as shells do."""
    settings = online_settings_from_args(args)
    from cowclip_merlin.online.replaying.replay_folder import replay_log
    from cowclip_merlin.system.signals import Stopped

    replay = settings_from(args, ReplaySettings)
    try:
        rows = replay_log(
            args.files,
            args.features,
            settings,
            replay,
            out=args.out,
            start=tuple(args.start) if args.start else None,
            resume=args.resume,
            max_bad_fraction=args.max_bad_fraction,
        )
    except Stopped as stop:
        message = f"stopped with a snapshot in {args.out}; go on with --resume"
        print(f"cowclip: {message}", file=sys.stderr)
        return 128 + stop.signal_number
    width = max(len("sync"), *(len(row["sync"]) for row in rows))
    print(f"{'sync':<{width}}  AUC %   log loss  rows")
    for row in rows:
        print(
            f"{row['sync']:<{width}}  {_percent(row['auc'])}  {row['log_loss']:.5f}   "
            f"{row['rows']:,}"
        )
    print(f"AUC by day and hour, and figures: {args.out}")
    return 0


def _percent(auc: float | str) -> str:
    """An AUC in percent; a dash if all labels are equal."""
    return f"{100 * auc:.3f}" if isinstance(auc, float) else "-     "


REPLAY = Command(
    help="score a log with serving copies that are synced at different intervals",
    settings=add_arguments,
    run=run,
    examples="""examples:
  cowclip online replay events.csv --features events.csv.yaml --out REPLAY \\
      --model deepfm --batch-size 1024 --batch-days 5 --sync never,1d,5h,1h,30min
  cowclip online replay events.csv --features events.csv.yaml --out REPLAY --resume \\
      --model deepfm --batch-size 1024 --batch-days 5 --sync never,1d,5h,1h,30min

The first --batch-days are only trained. Then each batch is scored before it is trained on, by one
serving copy of the model for each interval. REPLAY/replay.csv has the AUC of each copy over all
scored events. Ctrl-C writes a snapshot and stops.""",
)
