"""`cowclip online join`: make training examples from impressions and clicks."""

from __future__ import annotations

import argparse
import sys

from cowclip_merlin.cli.command import Command, CommandParser
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.logs.open_log import LOG_FORMS
from cowclip_merlin.online.report import MonitoringSettings
from cowclip_merlin.settings import add_options, settings_from


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `cowclip online join`."""
    add = parser.add_argument
    add("--impressions", required=True, metavar="LOG", help=f"log to read: {LOG_FORMS}")
    add("--actions", required=True, metavar="LOG", help="log of clicks to read, like --impressions")
    add("--to", required=True, metavar="LOG", help="log of examples to write, like --impressions")
    add("--features", required=True, metavar="YAML", help="features file with a key")
    add_options(parser, JoinSettings, "window")
    text = "SQLite file: a new one, or one to resume; with Flink, a folder for checkpoints"
    add("--state", required=True, metavar="FILE", help=text)
    text = "one process with SQLite, or Apache Flink on logs of text lines (default: %(default)s)"
    add("--engine", choices=("sqlite", "flink"), default="sqlite", help=text)
    texts = {"late": {"default": "0"}, "lateness": {"default": "10s"}}
    names = ("negatives", "late", "lateness", "idle", "seed")
    add_options(parser, JoinSettings, *names, **texts)
    text = "stop at the ends that both logs have now, and end all windows"
    add("--until-end", action="store_true", help=text)
    text = "remove messages from both logs when they were joined, if nothing else reads them; "
    text += "not with Flink"
    add("--trim", action="store_true", help=text)
    add_options(parser, MonitoringSettings)


def run(args: argparse.Namespace) -> int:
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
    settings=add_arguments,
    run=run,
    examples="""examples:
  cowclip online join --impressions IMPRESSIONS --actions CLICKS --to EXAMPLES \\
      --features events.csv.yaml --window 10min --negatives 0.1 --state join.state

An impression with a click in the window is a positive at once. One without is a negative when the
window is over, and is kept with the probability --negatives. The same command goes on where it was
stopped or killed.""",
)
