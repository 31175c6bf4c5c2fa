"""`cowclip online train`: train on a stream of events, and sync servers."""

from __future__ import annotations

import argparse
import sys

from cowclip_merlin.cli.options.common_options import add_option
from cowclip_merlin.cli.options.online_options import (
    add_online_model_options,
    add_start_option,
    add_table_options,
    online_settings_from_args,
)
from cowclip_merlin.online.logs.open_log import FORMS
from cowclip_merlin.online.training.settings import ON_RESTART, StreamSettings

HELP = "train on a stream of events, and send the changes to servers"
EXAMPLES = """examples:
  cowclip online produce events.csv --features events.csv.yaml --to EVENTS --rate 2000
  cowclip online train --from EVENTS --features events.csv.yaml --out RUN --to SYNC \\
      --model deepfm --batch-size 1024 --sync-every 1
  cowclip online serve --from SYNC --port 8000

Run the same command again to resume after a stop or a crash. Ctrl-C writes a snapshot."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip online train`."""
    add = parser.add_argument
    add("--from", dest="events", required=True, metavar="LOG", help=f"events to read: {FORMS}")
    add("--features", required=True, metavar="YAML", help="features file")
    add("--out", required=True, metavar="RUN", help="run folder: a new one, or one to resume")
    add("--to", dest="servers", metavar="LOG", help="log for servers to write, like --from")
    _add_stream_options(parser)
    add_start_option(parser)
    add_online_model_options(parser)
    add_table_options(parser)


def _add_stream_options(parser: argparse.ArgumentParser) -> None:
    known = StreamSettings
    text = "seconds after which a smaller batch is trained; 0: wait until it is full"
    add_option(parser, "max-wait", known.max_wait, "S", text)
    text = "seconds between two syncs of the servers' rows"
    add_option(parser, "sync-every", known.sync_every, "S", text)
    text = "seconds between two syncs of the dense weights"
    add_option(parser, "dense-every", known.dense_every, "S", text)
    text = "seconds between two snapshots; 0: only at the end"
    add_option(parser, "snapshot-every", known.snapshot_every, "S", text)
    text = (
        "largest batch, in multiples of --batch-size, while that many events wait; 1: never larger"
    )
    add_option(parser, "catch-up", known.catch_up, "K", text)
    text = "seconds of event time for which an event with a known key is dropped; 0: never"
    add_option(parser, "repeats-window", known.repeats_window, "S", text)
    parser.add_argument(
        "--on-restart",
        default=known.on_restart,
        choices=ON_RESTART,
        help="after a restart, train again what came after the snapshot (replay), or continue with "
        "the newest event (skip) (default: %(default)s)",
    )
    parser.add_argument(
        "--trim",
        action="store_true",
        help="delete events from the log once both snapshots contain them; only if nothing else "
        "reads the log",
    )
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the log")


def run(args: argparse.Namespace) -> int:
    """Train; return 128 + the signal's number after a signal, as shells do."""
    settings = online_settings_from_args(args)
    stream = stream_settings_from_args(args)
    from cowclip_merlin.online.training.stream_folder import train_stream
    from cowclip_merlin.system.signals import Stopped

    try:
        trained = train_stream(
            args.events,
            args.features,
            settings,
            stream,
            out=args.out,
            servers=args.servers,
            start=tuple(args.start) if args.start else None,
        )
    except Stopped as stop:
        message = f"stopped with a snapshot in {args.out}; the same command goes on"
        print(f"cowclip: {message}", file=sys.stderr)
        return 128 + stop.signal_number
    print(f"trained {trained:,} events: {args.out}")
    return 0


def stream_settings_from_args(args: argparse.Namespace) -> StreamSettings:
    """Build the settings of the stream from the arguments."""
    return StreamSettings(
        max_wait=args.max_wait,
        sync_every=args.sync_every,
        dense_every=args.dense_every,
        snapshot_every=args.snapshot_every,
        catch_up=args.catch_up,
        on_restart=args.on_restart,
        repeats_window=args.repeats_window,
        until_end=args.until_end,
        trim=args.trim,
    )
