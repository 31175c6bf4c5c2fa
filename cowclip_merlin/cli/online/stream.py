"""`cowclip online train`, `serve`, `rollback` and `demo`: a model that follows a stream."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from datetime import datetime

from cowclip_merlin.cli.command import Command, CommandParser
from cowclip_merlin.cli.options import (
    add_online_model_options,
    add_start_option,
    add_table_options,
    online_settings_from_args,
)
from cowclip_merlin.demo.pipeline import OWN, OWN_KAFKA_RATE, DemoSettings
from cowclip_merlin.launcher.call import LaunchSettings
from cowclip_merlin.online.logs.open_log import LOG_FORMS
from cowclip_merlin.online.report import MonitoringSettings
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.settings import Settings, add_options, option, settings_from, values_from
from cowclip_merlin.training.run_settings import RunSettings


def add_train_options(parser: CommandParser) -> None:
    """Add the options of `cowclip online train`."""
    what = parser.add_argument_group("what to train")
    add = what.add_argument
    add("--from", dest="events", required=True, metavar="LOG", help=f"events to read: {LOG_FORMS}")
    add("--features", required=True, metavar="YAML", help="features file")
    add("--out", required=True, metavar="RUN", help="run folder: a new one, or one to resume")
    add("--to", dest="servers", metavar="LOG", help="log for servers to write, like --from")
    add_start_option(what)
    model = add_online_model_options(parser, what)
    add_options(model, RunSettings, "multi_task", "experts")
    add_options(parser.add_argument_group("syncs, snapshots and restarts"), StreamSettings)
    add_table_options(parser.add_argument_group("growing tables"))
    add_options(parser.add_argument_group("monitoring"), MonitoringSettings)
    of_stream = {
        "workers": {
            "help": "processes on this machine that share every batch; each has a part of the rows",
            "shown": "1",
        },
        "restarts": {
            "help": "how often to restart all workers from the newest snapshot after one fails"
        },
    }
    add_options(parser.add_argument_group("workers"), LaunchSettings, *of_stream, **of_stream)


def run_train(args: argparse.Namespace) -> int:
    """Train; return 128 + the signal's number after a signal, as shells do."""
    settings = online_settings_from_args(args)
    stream = settings_from(args, StreamSettings)
    monitoring = settings_from(args, MonitoringSettings)
    processes = LaunchSettings(**values_from(args, LaunchSettings))
    from cowclip_merlin.online.training.start_workers import (
        join_workers,
        start_workers,
        was_started,
    )
    from cowclip_merlin.system.signals import Stopped

    try:
        if processes.needed:
            batch_size = settings.run.batch_size
            start_workers(args.argv, processes, out=args.out, batch_size=batch_size)
            from cowclip_merlin.online.training.run_snapshots import snapshot_times

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


TRAIN = Command(
    help="train on a stream of events, and send the changes to servers",
    settings=add_train_options,
    run=run_train,
    examples="""examples:
  cowclip online produce events.csv --features events.csv.yaml --to EVENTS --rate 2000
  cowclip online train --from EVENTS --features events.csv.yaml --out RUN --to SYNC \\
      --model deepfm --batch-size 1024 --sync-every 1
  cowclip online serve --from SYNC --port 8000
  cowclip online train --from EVENTS --features events.csv.yaml --out RUN2 --model deepfm \\
      --batch-size 8192 --workers 2 --restarts 3

Run the same command again to resume after a stop or a crash. Ctrl-C writes a snapshot.""",
)


@dataclass(frozen=True, kw_only=True)
class RollbackOptions(Settings):
    """Where to go back."""

    stream_run: str = option(
        help="folder that cowclip online train wrote", flag="stream_run", metavar="RUN"
    )
    to: int | None = option(
        None, "the snapshot to go back to, by its number (default: only list them)",
        metavar="EVENTS",
    )  # fmt: skip


def run_rollback(given: RollbackOptions) -> None:
    """List the snapshots, or go back."""
    from cowclip_merlin.online.training.run_snapshots import roll_back, snapshot_times

    if given.to is None:
        for number, time in snapshot_times(given.stream_run).items():
            print(f"{number:>15,} events, written {datetime.fromtimestamp(time):%Y-%m-%d %H:%M:%S}")
        return
    newer = roll_back(given.stream_run, given.to)
    left = ", ".join(f"{number:,}" for number in newer) or "none"
    print(
        f"{given.stream_run}: the next start goes on after {given.to:,} events; set aside: {left}"
    )


ROLLBACK = Command(
    notes=False,
    help="list the snapshots of a stopped training, or go back to one",
    needs=("yaml",),
    settings=RollbackOptions,
    run=run_rollback,
    examples="""examples:
  cowclip online rollback RUN
  cowclip online rollback RUN --to 400000

After it, start cowclip online train as before: it trains the events since that snapshot again, or
leaves them out with --on-restart skip. Servers follow. The newer snapshots stay, renamed.""",
)


def add_demo_options(parser: CommandParser) -> None:
    """Add the arguments of `cowclip online demo`."""
    parts = parser.add_argument_group("what to run")
    parts.add_argument(
        "--work",
        default="online-demo",
        metavar="FOLDER",
        help="new or empty folder for all files (default: %(default)s)",
    )
    names = ("minutes", "rate", "sync_every", "redis", "kafka", "seed")
    add_options(parts, DemoSettings, *names)


def run_parts(args: argparse.Namespace) -> None:
    """Run the demo and print its results."""
    from cowclip_merlin.demo.online import run_demo

    own_rate = {"rate": OWN_KAFKA_RATE} if args.kafka == OWN and args.rate is None else {}
    print(run_demo(settings_from(args, DemoSettings, **own_rate), args.work))


DEMO = Command(
    notes=False,
    help="run all parts in one terminal: a stream, joiner, trainer, servers and measurements",
    settings=add_demo_options,
    run=run_parts,
    examples="""examples:
  cowclip online demo
  cowclip online demo --work work/online-redis --redis --minutes 5
  cowclip online demo --work work/online-brokers --kafka kafka://HOST:9092 --redis redis://HOST:6379

A generated stream drifts: effects change, items come and go. The trainer follows it, and two
servers follow the trainer; a third one gets no more syncs after a while, for comparison. The
trainer is killed once. FOLDER then contains demo.json, demo.svg, and the output of each part in
logs/.""",
)
