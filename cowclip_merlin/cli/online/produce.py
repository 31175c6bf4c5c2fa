"""`cowclip online produce`: play a log, or a generated stream, as messages of events."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from cowclip_merlin.cli.options.common_options import add_option
from cowclip_merlin.cli.options.online_options import add_max_bad_fraction_option
from cowclip_merlin.errors import InputError

if TYPE_CHECKING:
    from tqdm import tqdm

    from cowclip_merlin.online.events.features import LogFeatures
    from cowclip_merlin.online.events.raw_events import RawLog
    from cowclip_merlin.online.producing.producer import Produced, Producer, Targets
    from cowclip_merlin.synthetic.drifting_stream import DriftingStream
    from cowclip_merlin.system.signals import GracefulStop

HELP = "play a log, or a generated stream, as messages of events"
EXAMPLES = """examples:
  cowclip online produce events.csv --features events.csv.yaml --to EXAMPLES --rate 2000
  cowclip online produce --generate --features stream.yaml --rate 2000 \\
      --impressions IMPRESSIONS --actions ACTIONS

A LOG of messages is a folder, redis://HOST:6379/STREAM or kafka://HOST:9092/TOPIC. --generate makes
the same events as `cowclip generate --drift` with the same number of events, days and seed. It
writes their features file, and gives each event its true click probability in the column
"probability", which the features file does not name. Ctrl-C stops it."""
_EVENTS, _DAYS = 1_000_000, 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip online produce`."""
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="CSV, TSV (also compressed) or parquet to play"
    )
    text = "features file; written with --generate"
    parser.add_argument("--features", required=True, metavar="YAML", help=text)
    parser.add_argument("--to", metavar="LOG", help="log of whole examples")
    text = "log of events without labels; with --actions instead of --to"
    parser.add_argument("--impressions", metavar="LOG", help=text)
    parser.add_argument("--actions", metavar="LOG", help="log of clicks")
    add_option(parser, "rate", 0.0, "N", "events per second; 0: as fast as possible")
    add_option(parser, "speed", 0.0, "X", "seconds of event time per second; 0: use --rate")
    text = "times of the events: those of the log, or those of the clock when they are due"
    default = " (default: log, with --generate now)"
    parser.add_argument("--times", choices=("log", "now"), help=text + default)
    text = "with --actions: mean seconds from an impression to its click, in event time"
    add_option(parser, "delay", 2.0, "S", text)
    _add_generate_options(parser)
    add_max_bad_fraction_option(parser)
    parser.set_defaults(delay=None, max_bad_fraction=None)  # to know what was given


def _add_generate_options(parser: argparse.ArgumentParser) -> None:
    text = "generate a stream whose effects drift and whose items come and go"
    parser.add_argument("--generate", action="store_true", help=text)
    text = f"with --generate: events to generate (default: {_EVENTS:,})"
    parser.add_argument("--events", type=int, metavar="N", help=text)
    text = f"with --generate: days of drift in these events (default: {_DAYS})"
    parser.add_argument("--days", type=int, metavar="D", help=text)
    add_option(parser, "seed", 1234, "N", "seed of the generated stream and of the delays")


def run(args: argparse.Namespace) -> int:
    """Play the events; return 128 + the signal's number after a signal, as shells do."""
    from tqdm import tqdm

    from cowclip_merlin.system.signals import GracefulStop

    _check(args)
    stream, features, total = _generated(args) if args.generate else _played(args)
    stop = GracefulStop()
    with stop.catch_signals(), tqdm(total=total, unit="event", disable=None, leave=False) as bar:
        producer = _producer(args, features, stop, bar)
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
    if args.delay is not None and not args.actions:
        raise InputError(f"--delay {args.delay:g}: only clicks have one; add --actions, or drop it")
    if args.times is None:
        args.times = "now" if args.generate else "log"


def _producer(
    args: argparse.Namespace, features: LogFeatures, stop: GracefulStop, bar: tqdm
) -> Producer:
    from cowclip_merlin.online.producing.pace import Pace
    from cowclip_merlin.online.producing.producer import Producer

    def trouble(reason: str) -> None:
        with bar.external_write_mode(sys.stderr):
            print(f"cowclip: waiting for the log: {reason}", file=sys.stderr)

    return Producer(
        features,
        _targets(args),
        Pace(rate=args.rate, speed=args.speed),
        new_times=args.times == "now",
        seed=args.seed,
        stopped=lambda: stop.signal_number is not None,
        progress=bar.update,
        trouble=trouble,
        **_given(args, "delay"),
    )


def _given(args: argparse.Namespace, name: str) -> dict[str, float]:
    """An option that was given, as a keyword; none otherwise, so that the default holds."""
    value = getattr(args, name)
    return {} if value is None else {name: value}


def _targets(args: argparse.Namespace) -> Targets:
    from cowclip_merlin.online.logs.open_log import open_log
    from cowclip_merlin.online.producing.producer import Targets

    given = {"examples": args.to, "impressions": args.impressions, "actions": args.actions}
    return Targets(**{name: open_log(url, create=True) for name, url in given.items() if url})


def _generated(args: argparse.Namespace) -> tuple[DriftingStream, LogFeatures, int]:
    """Return the stream, its features and its number of events."""
    from cowclip_merlin.online.events.features_file import load_features
    from cowclip_merlin.synthetic.drifting_stream import DriftingStream, write_stream_features

    events = _EVENTS if args.events is None else args.events
    days = _DAYS if args.days is None else args.days
    stream = DriftingStream(events=events, days=days, seed=args.seed)
    write_stream_features(args.features, seconds_per_day=_seconds_per_day(args, events / days))
    return stream, load_features(args.features), events


def _seconds_per_day(args: argparse.Namespace, events_per_day: float) -> float | None:
    """Return the seconds of event time in a day of drift; None if nobody knows."""
    if args.times == "log":
        return 86_400.0
    if args.rate > 0:
        return events_per_day / args.rate
    return 86_400 / args.speed if args.speed > 0 else None


def _played(args: argparse.Namespace) -> tuple[RawLog, LogFeatures, None]:
    """Return the events of the files, their features, and None: their number is not known."""
    from cowclip_merlin.online.events.features_file import load_features
    from cowclip_merlin.online.events.raw_events import RawLog

    features = load_features(args.features)
    log = RawLog(args.files, features, **_given(args, "max_bad_fraction"))
    return log, features, None


def _summary(produced: Produced, *, paired: bool) -> str:
    what = "impressions" if paired else "events"
    rate = produced.events / produced.seconds if produced.seconds else 0
    left = f", {produced.left:,} clicks left out by the stop" if produced.left else ""
    return (
        f"{produced.events:,} {what}, {produced.clicks:,} clicks in {produced.seconds:.1f} s "
        f"({rate:,.0f} a second){left}"
    )
