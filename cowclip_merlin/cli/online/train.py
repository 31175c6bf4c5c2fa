"""`cowclip online train`: train on a stream of events, and sync servers."""

from __future__ import annotations

import argparse
import sys

from cowclip_merlin.cli.options.online_options import (
    add_online_model_options,
    add_start_option,
    add_table_options,
    online_settings_from_args,
)
from cowclip_merlin.launcher.call import LaunchSettings
from cowclip_merlin.online.logs.open_log import LOG_FORMS
from cowclip_merlin.online.report import MonitoringSettings
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.settings import add_options, settings_from, values_from
from cowclip_merlin.training.run_settings import RunSettings

HELP = "train on a stream of events, and send the changes to servers"
EXAMPLES = """examples:
  cowclip online produce events.csv --features events.csv.yaml --to EVENTS --rate 2000
  cowclip online train --from EVENTS --features events.csv.yaml --out RUN --to SYNC \\
      --model deepfm --batch-size 1024 --sync-every 1
  cowclip online serve --from SYNC --port 8000
  cowclip online train --from EVENTS --features events.csv.yaml --out RUN2 --model deepfm \\
      --batch-size 8192 --workers 2 --restarts 3

Run the same command again to resume after a stop or a crash. Ctrl-C writes a snapshot."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip online train`."""
    add = parser.add_argument
    add("--from", dest="events", required=True, metavar="LOG", help=f"events to read: {LOG_FORMS}")
    add("--features", required=True, metavar="YAML", help="features file")
    add("--out", required=True, metavar="RUN", help="run folder: a new one, or one to resume")
    add("--to", dest="servers", metavar="LOG", help="log for servers to write, like --from")
    add_options(parser, StreamSettings)
    add_start_option(parser)
    add_online_model_options(parser)
    add_options(parser, RunSettings, "multi_task", "experts")
    add_table_options(parser)
    add_options(parser, MonitoringSettings)
    of_stream = {
        "workers": {
            "help": "processes on this machine that share every batch; each has a part of the rows",
            "shown": "1",
        },
        "restarts": {
            "help": "how often to restart all workers from the newest snapshot after one fails"
        },
    }
    add_options(parser, LaunchSettings, *of_stream, **of_stream)


def run(args: argparse.Namespace) -> int:
    """Train; return 128 + the signal's number after a signal, as shells do."""
    settings = online_settings_from_args(args)
    stream = settings_from(args, StreamSettings)
    monitoring = settings_from(args, MonitoringSettings)
    processes = LaunchSettings(**values_from(args, LaunchSettings))
    from cowclip_merlin.online.training.shards.start_workers import (
        join_workers,
        start_workers,
        was_started,
    )
    from cowclip_merlin.system.signals import Stopped

    try:
        if processes.needed:
            batch_size = settings.run.batch_size
            start_workers(args.argv, processes, out=args.out, batch_size=batch_size)
            from cowclip_merlin.online.training.stream_folder import snapshot_times

            trained = max(snapshot_times(args.out))
        else:
            join_workers(settings.run.seed)
            from cowclip_merlin.online.training.stream_folder import train_stream

            trained = train_stream(
                args.events,
                args.features,
                settings,
                stream,
                out=args.out,
                servers=args.servers,
                start=tuple(args.start) if args.start else None,
                monitoring=monitoring,
            )
    except Stopped as stop:
        if not was_started():
            message = f"stopped with a snapshot in {args.out}; the same command goes on"
            print(f"cowclip: {message}", file=sys.stderr)
        return 128 + stop.signal_number
    if not was_started():
        print(f"trained {trained:,} events: {args.out}")
    return 0
