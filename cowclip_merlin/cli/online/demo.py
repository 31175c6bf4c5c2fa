"""`cowclip online demo`: all parts in one terminal, with numbers and a figure at the end."""

from __future__ import annotations

import argparse

from cowclip_merlin.cli.command import Command, CommandParser
from cowclip_merlin.demo.pipeline import OWN, OWN_KAFKA_RATE, DemoSettings
from cowclip_merlin.settings import add_options, settings_from


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `cowclip online demo`."""
    parser.add_argument(
        "--work",
        default="online-demo",
        metavar="FOLDER",
        help="new or empty folder for all files (default: %(default)s)",
    )
    names = ("minutes", "rate", "sync_every", "redis", "kafka", "seed")
    add_options(parser, DemoSettings, *names)


def run(args: argparse.Namespace) -> None:
    """Run the demo and print its results."""
    from cowclip_merlin.demo.online import run_demo

    own_rate = {"rate": OWN_KAFKA_RATE} if args.kafka == OWN and args.rate is None else {}
    print(run_demo(settings_from(args, DemoSettings, **own_rate), args.work))


DEMO = Command(
    help="run all parts in one terminal: a stream, joiner, trainer, servers and measurements",
    settings=add_arguments,
    run=run,
    examples="""examples:
  cowclip online demo
  cowclip online demo --work work/online-redis --redis --minutes 5
  cowclip online demo --work work/online-brokers --kafka kafka://HOST:9092 --redis redis://HOST:6379

A generated stream drifts: effects change, items come and go. The trainer follows it, and two
servers follow the trainer; a third one gets no more syncs after a while, for comparison. The
trainer is killed once. FOLDER then contains demo.json, demo.svg, and the output of each part in
logs/.""",
)
