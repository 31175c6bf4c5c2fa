"""`cowclip online produce`, `join` and `replay`: what reads a log of events to its end."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from cowclip_merlin.cli.command import Command, CommandParser
from cowclip_merlin.cli.options import (
    add_max_bad_fraction_option,
    add_online_model_options,
    add_start_option,
    add_table_options,
    online_settings_from_args,
)
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.logs.open_log import LOG_FORMS, refuse_one_log
from cowclip_merlin.online.producing.producer import (
    Produced,
    Producer,
    ProduceSettings,
    check_logs,
)
from cowclip_merlin.online.replaying.settings import ReplaySettings
from cowclip_merlin.online.report import MonitoringSettings
from cowclip_merlin.settings import add_options, settings_from
from cowclip_merlin.synthetic.drifting_stream import (
    DriftingStream,
    StreamSize,
    write_stream_features,
)
from cowclip_merlin.system.console import progress

if TYPE_CHECKING:
    from cowclip_merlin.online.events.event_log import RawLog
    from cowclip_merlin.online.events.features import LogFeatures


def add_produce_options(parser: CommandParser) -> None:
    """Add the arguments of `cowclip online produce`."""
    what = parser.add_argument_group("what to play")
    add = what.add_argument
    add("files", nargs="*", metavar="FILE", help="CSV, TSV (also compressed) or parquet to play")
    add("--features", required=True, metavar="YAML", help="features file; written with --generate")
    add("--to", metavar="LOG", help="log of whole examples")
    text = "log of events without labels; with --actions instead of --to"
    add("--impressions", metavar="LOG", help=text)
    add("--actions", metavar="LOG", help="log of clicks")
    names = ("rate", "speed", "times", "delay")
    times = {"default": None, "shown": "log, with --generate now"}
    delay = {"default": None, "shown": f"{ProduceSettings.delay:g}"}
    clock = parser.add_argument_group("rate and times")
    add_options(clock, ProduceSettings, *names, times=times, delay=delay)
    made = parser.add_argument_group("generated stream")
    text = "generate a stream whose effects drift and whose items come and go"
    made.add_argument("--generate", action="store_true", help=text)
    events = {"default": None, "help": "with --generate: events to generate"}
    days = {"default": None, "shown": str(StreamSize.days)}
    days["help"] = "with --generate: days of drift in these events"
    seed = {"help": "seed of the generated stream and of the delays"}
    add_options(made, StreamSize, "rows", "days", "seed", rows=events, days=days, seed=seed)
    add_max_bad_fraction_option(what)
    parser.set_defaults(max_bad_fraction=None)  # to know what was given


def run_produce(args: argparse.Namespace) -> int:
    """Play the events; return 128 + the signal's number after a signal, as shells do."""
    from cowclip_merlin.online.logs.open_log import open_log
    from cowclip_merlin.system.signals import GracefulStop

    _check_produced(args)
    settings = settings_from(args, ProduceSettings)  # before any file
    stream, features, total = _generated(args) if args.generate else _played(args)
    stop = GracefulStop()
    urls = {"examples": args.to, "impressions": args.impressions, "actions": args.actions}
    with ExitStack() as stack:
        stack.enter_context(stop.catch_signals())
        bar = stack.enter_context(progress(total, unit="event"))

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
    print(_produced_words(produced, paired=args.to is None), flush=True)
    damaged = getattr(stream, "damaged", None)
    if damaged is not None and damaged.count:
        first = damaged.first[0]
        print(
            f"{damaged.count:,} damaged rows left out; the first is {first.file}:{first.line}: "
            f"{first.reason}"
        )
    return 128 + stop.signal_number if stop.signal_number else 0


def _check_produced(args: argparse.Namespace) -> None:
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
    refuse_one_log(impressions=args.impressions, actions=args.actions)
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


def _produced_words(produced: Produced, *, paired: bool) -> str:
    what = "impressions" if paired else "events"
    rate = produced.events / produced.seconds if produced.seconds else 0
    left = f", {produced.left:,} clicks left out by the stop" if produced.left else ""
    return (
        f"{produced.events:,} {what}, {produced.clicks:,} clicks in {produced.seconds:.1f} s "
        f"({rate:,.0f} a second){left}"
    )


PRODUCE = Command(
    help="play a log, or a generated stream, as messages of events",
    needs=("pyarrow",),
    settings=add_produce_options,
    run=run_produce,
    examples="""examples:
  cowclip online produce events.csv --features events.csv.yaml --to EXAMPLES --rate 2000
  cowclip online produce --generate --features stream.yaml --rate 2000 \\
      --impressions IMPRESSIONS --actions ACTIONS

A LOG of messages is a folder, redis://HOST:6379/STREAM or kafka://HOST:9092/TOPIC. --generate makes
the same events as `cowclip generate --drift` with the same number of events, days and seed. It
writes their features file, and gives each event its true click probability in the column
"probability", which the features file does not name. Ctrl-C stops it.""",
)


def add_join_options(parser: CommandParser) -> None:
    """Add the arguments of `cowclip online join`."""
    what = parser.add_argument_group("what to join")
    add = what.add_argument
    add("--impressions", required=True, metavar="LOG", help=f"log to read: {LOG_FORMS}")
    add("--actions", required=True, metavar="LOG", help="log of clicks to read, like --impressions")
    add("--to", required=True, metavar="LOG", help="log of examples to write, like --impressions")
    add("--features", required=True, metavar="YAML", help="features file with a key")
    add_options(what, JoinSettings, "window")
    text = "SQLite file: a new one, or one to resume; with Flink, a folder for checkpoints"
    add("--state", required=True, metavar="FILE", help=text)
    examples = parser.add_argument_group("examples")
    run = parser.add_argument_group("run")
    text = "one process with SQLite, or Apache Flink on logs of text lines (default: %(default)s)"
    run.add_argument("--engine", choices=("sqlite", "flink"), default="sqlite", help=text)
    texts = {"late": {"default": "0"}, "lateness": {"default": "10s"}}
    names = ("negatives", "late", "lateness", "idle", "seed")
    add_options(examples, JoinSettings, *names, **texts)
    text = "stop at the ends that both logs have now, and end all windows"
    run.add_argument("--until-end", action="store_true", help=text)
    text = "remove messages from both logs when they were joined, if nothing else reads them; "
    text += "not with Flink"
    run.add_argument("--trim", action="store_true", help=text)
    add_options(parser.add_argument_group("monitoring"), MonitoringSettings)


def run_join(args: argparse.Namespace) -> int:
    """Join; return 128 + the signal's number after a signal, as shells do."""
    settings = settings_from(args, JoinSettings)
    monitoring = settings_from(args, MonitoringSettings)
    if args.engine == "flink":
        return _run_on_flink(args, settings, monitoring)
    from cowclip_merlin.online.joining.loop import join_logs
    from cowclip_merlin.system.signals import Stopped

    try:
        join_logs(
            args.impressions,
            args.actions,
            args.to,
            args.features,
            settings,
            state=args.state,
            until_end=args.until_end,
            trim=args.trim,
            monitoring=monitoring,
        )
    except Stopped as stop:
        print("cowclip: stopped; the same command goes on", file=sys.stderr)
        return 128 + stop.signal_number
    return 0


def _run_on_flink(
    args: argparse.Namespace, settings: JoinSettings, monitoring: MonitoringSettings
) -> int:
    from cowclip_merlin.online.joining.flink import join_on_flink

    if args.trim:
        raise InputError("--trim: Flink removes no messages; drop it, or use --engine sqlite")
    for name, value in vars(monitoring).items():
        if value != getattr(MonitoringSettings, name):
            raise InputError(
                f"--{name.replace('_', '-')}: Flink has metrics and logs of its own; drop it, or "
                "use --engine sqlite"
            )
    join_on_flink(
        args.impressions,
        args.actions,
        args.to,
        args.features,
        settings,
        checkpoints=args.state,
        until_end=args.until_end,
    )
    return 0


JOIN = Command(
    help="make training examples from a log of impressions and a log of clicks",
    needs=("yaml",),
    settings=add_join_options,
    run=run_join,
    examples="""examples:
  cowclip online join --impressions IMPRESSIONS --actions CLICKS --to EXAMPLES \\
      --features events.csv.yaml --window 10min --negatives 0.1 --state join.state

An impression with a click in the window is a positive at once. One without is a negative when the
window is over, and is kept with the probability --negatives. The same command goes on where it was
stopped or killed.""",
)


def add_replay_options(parser: CommandParser) -> None:
    """Add the arguments of `cowclip online replay`."""
    what = parser.add_argument_group("what to replay")
    add = what.add_argument
    add("files", nargs="+", metavar="LOG", help="CSV, TSV (also compressed) or parquet")
    add("--features", required=True, metavar="YAML", help="features file")
    add("--out", required=True, metavar="OUT", help="folder to write")
    usual = {"batch_days": {"default": 1.0}, "sync": {"default": ("never", "1d", "1h")}}
    add_options(what, ReplaySettings, **usual)
    add_start_option(what)
    add("--resume", action="store_true", help="go on from the last snapshot")
    add_max_bad_fraction_option(what)
    add_online_model_options(parser, what)
    add_table_options(parser.add_argument_group("growing tables"))


def run_replay(args: argparse.Namespace) -> int:
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
    settings=add_replay_options,
    run=run_replay,
    examples="""examples:
  cowclip online replay events.csv --features events.csv.yaml --out REPLAY \\
      --model deepfm --batch-size 1024 --batch-days 5 --sync never,1d,5h,1h,30min
  cowclip online replay events.csv --features events.csv.yaml --out REPLAY --resume \\
      --model deepfm --batch-size 1024 --batch-days 5 --sync never,1d,5h,1h,30min

The first --batch-days are only trained. Then each batch is scored before it is trained on, by one
serving copy of the model for each interval. REPLAY/replay.csv has the AUC of each copy over all
scored events. Ctrl-C writes a snapshot and stops.""",
)
