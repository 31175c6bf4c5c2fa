"""`cowclip online train`, `serve`, `rollback` and `demo`: a model that follows a stream."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cowclip_merlin.addresses import is_address
from cowclip_merlin.cli.command import Command, CommandParser
from cowclip_merlin.cli.options import (
    add_online_model_options,
    add_start_option,
    add_table_options,
    online_settings_from_args,
)
from cowclip_merlin.demo.pipeline import OWN, OWN_KAFKA_RATE, DemoSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.launcher.call import LaunchSettings
from cowclip_merlin.online.logs.open_log import LOG_FORMS
from cowclip_merlin.online.report import MonitoringSettings
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.serving.live.settings import Listening, ServingLimits
from cowclip_merlin.settings import Settings, add_options, option, settings_from, values_from
from cowclip_merlin.system import records
from cowclip_merlin.training.run_settings import RunSettings

TOKEN_VARIABLE = "COWCLIP_TOKEN"


def add_train_options(parser: CommandParser) -> None:
    """Add the options of `cowclip online train`."""
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


def add_serve_options(parser: CommandParser) -> None:
    """Add the options of `cowclip online serve`."""
    add = parser.add_argument
    add(
        "--from",
        dest="log",
        required=True,
        metavar="LOG",
        help=f"log of the trainer: {LOG_FORMS}",
    )
    text = "the trainer's run folder as this machine sees it (default: as the trainer names it)"
    add("--run", dest="run_folder", metavar="RUN", help=text)
    add_options(parser, Listening, "host", "allowed_hosts", "port")
    text = f"file with the token that requests must send (default: variable {TOKEN_VARIABLE})"
    add("--token-file", metavar="FILE", help=text)
    add_options(parser, Listening, "tls_cert", "tls_key")
    add_options(parser, ServingLimits)
    add("--access-log", action="store_true", help="print a line for each request")
    add_options(parser, MonitoringSettings, "log_format")


def run_serve(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    limits, listening = settings_from(args, ServingLimits), settings_from(args, Listening)
    token = read_token(args.token_file)
    here = args.run_folder is not None and not is_address(args.run_folder)
    if here and not Path(args.run_folder).is_dir():
        raise InputError(f"{args.run_folder}: no such folder; check --run")
    lines = logging.StreamHandler()
    lines.setFormatter(records.formatter(args.log_format, "%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    for name in ("uvicorn.error", "tensorflow"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from cowclip_merlin.serving.live.process import serve

    serve(
        args.log,
        run=args.run_folder,
        listening=listening,
        token=token,
        limits=limits,
        access_log=args.access_log,
    )
    return 0


def read_token(file: str | None) -> str | None:
    """Read the token of a file, or of the environment; None where neither is given.

    Raises:
        InputError: the file cannot be read, or the token is empty or not printable ASCII.
    """
    if file is None:
        token, source = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    else:
        try:
            token, source = Path(file).read_text(encoding="utf-8").strip(), file
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{file}: cannot be read ({error!s:.60}); check --token-file"
            ) from None
    if token is None:
        return None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"{source}: the token is empty, or has spaces or characters beyond ASCII")
    return token


SERVE = Command(
    help="answer requests by HTTP with a model that is being trained",
    settings=add_serve_options,
    run=run_serve,
    examples="""examples:
  cowclip online serve --from SYNC --port 8000
  curl --json '{"events": [{"user": 7, "item": "i12", ...}]}' http://127.0.0.1:8000/v1/predict

http://127.0.0.1:8000/ shows the age of the model and its requests, /docs the interface.
Start as many servers as you like; each follows the log by itself. SIGTERM ends a server when its
running requests have their answers.""",
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
    from cowclip_merlin.online.training.stream_folder import roll_back, snapshot_times

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
    parser.add_argument(
        "--work",
        default="online-demo",
        metavar="FOLDER",
        help="new or empty folder for all files (default: %(default)s)",
    )
    names = ("minutes", "rate", "sync_every", "redis", "kafka", "seed")
    add_options(parser, DemoSettings, *names)


def run_parts(args: argparse.Namespace) -> None:
    """Run the demo and print its results."""
    from cowclip_merlin.demo.online import run_demo

    own_rate = {"rate": OWN_KAFKA_RATE} if args.kafka == OWN and args.rate is None else {}
    print(run_demo(settings_from(args, DemoSettings, **own_rate), args.work))


DEMO = Command(
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
