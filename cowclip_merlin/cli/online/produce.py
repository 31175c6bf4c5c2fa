"""`cowclip online produce`: play a log, or a generated stream, as messages of events."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from cowclip_merlin.cli.command import Command, CommandParser
from cowclip_merlin.cli.options.online_options import add_max_bad_fraction_option
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.producing.producer import (
    Produced,
    Producer,
    ProduceSettings,
    check_logs,
)
from cowclip_merlin.settings import add_options, settings_from
from cowclip_merlin.synthetic.drifting_stream import (
    DriftingStream,
    StreamSize,
    write_stream_features,
)

if TYPE_CHECKING:
    from cowclip_merlin.online.events.event_log import RawLog
    from cowclip_merlin.online.events.features import LogFeatures


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `cowclip online produce`."""
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="CSV, TSV (also compressed) or parquet to play")
    add("--features", required=True, metavar="YAML", help="features file; written with --generate")
    add("--to", metavar="LOG", help="log of whole examples")
    text = "log of events without labels; with --actions instead of --to"
    add("--impressions", metavar="LOG", help=text)
    add("--actions", metavar="LOG", help="log of clicks")
    names = ("rate", "speed", "times", "delay")
    times = {"default": None, "shown": "log, with --generate now"}
    delay = {"default": None, "shown": f"{ProduceSettings.delay:g}"}
    add_options(parser, ProduceSettings, *names, times=times, delay=delay)
    text = "generate a stream whose effects drift and whose items come and go"
    add("--generate", action="store_true", help=text)
    events = {"default": None, "help": "with --generate: events to generate"}
    days = {"default": None, "shown": str(StreamSize.days)}
    days["help"] = "with --generate: days of drift in these events"
    seed = {"help": "seed of the generated stream and of the delays"}
    add_options(parser, StreamSize, "rows", "days", "seed", rows=events, days=days, seed=seed)
    add_max_bad_fraction_option(parser)
    parser.set_defaults(max_bad_fraction=None)  # to know what was given


def run(args: argparse.Namespace) -> int:
    """Play the events; return 128 + the signal's number after a signal, as shells do."""
    from tqdm import tqdm

    from cowclip_merlin.online.logs.open_log import open_log
    from cowclip_merlin.system.signals import GracefulStop

    _check(args)
    settings = settings_from(args, ProduceSettings)  # before any file
    stream, features, total = _generated(args) if args.generate else _played(args)
    stop = GracefulStop()
    urls = {"examples": args.to, "impressions": args.impressions, "actions": args.actions}
    with ExitStack() as stack:
        stack.enter_context(stop.catch_signals())
        bar = stack.enter_context(tqdm(total=total, unit="event", disable=None, leave=False))

        def trouble(reason: str) -> None:
            with bar.external_write_mode(sys.stderr):
                print(f"cowclip: waiting for the log: {reason}", file=sys.stderr)

        logs = {
            name: stack.enter_context(closing(open_log(url, create=True, several=True)))
            for name, url in urls.items()
            if url
        }
        producer = Producer(
            features,
            settings,
            **logs,
            stopped=lambda: stop.signal_number is not None,
            progress=bar.update,
            trouble=trouble,
        )
        produced = producer.run(stream)
    print(_summary(produced, paired=args.to is None), flush=True)
    damaged = getattr(stream, "damaged", None)
    if damaged is not None and damaged.count:
        first = damaged.first[0]
        print(
            f"{damaged.count:,} damaged rows left out; the first is {first.file}:{first.line}: "
            f"{first.reason}"
        )
    return 128 + stop.signal_number if stop.signal_number else 0


def _check(args: argparse.Namespace) -> None:
    """Refuse options that do not fit together."""
    if args.generate and args.files:
        raise InputError(f"{args.files[0]}: --generate plays no file; give one of them")
    if not args.generate and not args.files:
        raise InputError("no file to play; give one, or --generate")
    for name in ("events", "days"):
        value = getattr(args, name)
        if value is not None and not args.generate:
            raise InputError(f"--{name} {value}: a file has its own; add --generate")
    if args.generate and args.max_bad_fraction is not None:
        raise InputError(
            f"--max-bad-fraction {args.max_bad_fraction}: a generated stream has no damaged rows; "
            "drop it, or give a file"
        )
    check_logs(args.to, args.impressions, args.actions)
    if args.delay is not None and not args.actions:
        raise InputError(f"--delay {args.delay:g}: only clicks have one; add --actions, or drop it")
    if args.times is None and args.generate:
        args.times = "now"


def _generated(args: argparse.Namespace) -> tuple[DriftingStream, LogFeatures, int]:
    """Return the stream, its features and its number of events."""
    from cowclip_merlin.online.events.features import load_features

    size = settings_from(args, StreamSize)
    stream = DriftingStream(events=size.rows, days=size.days, seed=size.seed)
    seconds = _seconds_per_day(args, size.rows / size.days)
    write_stream_features(args.features, seconds_per_day=seconds)
    return stream, load_features(args.features), size.rows


def _seconds_per_day(args: argparse.Namespace, events_per_day: float) -> float | None:
    """Return the seconds of event time in a day of drift; None if nobody knows."""
    if args.times == "log":
        return 86_400.0
    if args.rate > 0:
        return events_per_day / args.rate
    return 86_400 / args.speed if args.speed > 0 else None


def _played(args: argparse.Namespace) -> tuple[RawLog, LogFeatures, None]:
    """Return the events of the files, their features, and None: their number is not known."""
    from cowclip_merlin.online.events.event_log import RawLog
    from cowclip_merlin.online.events.features import load_features

    features = load_features(args.features)
    given = {} if args.max_bad_fraction is None else {"max_bad_fraction": args.max_bad_fraction}
    return RawLog(args.files, features, **given), features, None


def _summary(produced: Produced, *, paired: bool) -> str:
    what = "impressions" if paired else "events"
    rate = produced.events / produced.seconds if produced.seconds else 0
    left = f", {produced.left:,} clicks left out by the stop" if produced.left else ""
    return (
        f"{produced.events:,} {what}, {produced.clicks:,} clicks in {produced.seconds:.1f} s "
        f"({rate:,.0f} a second){left}"
    )


PRODUCE = Command(
    help="play a log, or a generated stream, as messages of events",
    settings=add_arguments,
    run=run,
    examples="""examples:
  cowclip online produce events.csv --features events.csv.yaml --to EXAMPLES --rate 2000
  cowclip online produce --generate --features stream.yaml --rate 2000 \\
      --impressions IMPRESSIONS --actions ACTIONS

A LOG of messages is a folder, redis://HOST:6379/STREAM or kafka://HOST:9092/TOPIC. --generate makes
the same events as `cowclip generate --drift` with the same number of events, days and seed. It
writes their features file, and gives each event its true click probability in the column
"probability", which the features file does not name. Ctrl-C stops it.""",
)
