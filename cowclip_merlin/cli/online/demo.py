"""`cowclip online demo`: all parts in one terminal, with numbers and a figure at the end."""

from __future__ import annotations

import argparse

from cowclip_merlin.cli.options.common_options import add_option

HELP = "run all parts in one terminal: a stream, joiner, trainer, servers and measurements"
EXAMPLES = """examples:
  cowclip online demo
  cowclip online demo --work work/online-redis --redis --minutes 5
  cowclip online demo --work work/online-brokers --kafka kafka://HOST:9092 --redis redis://HOST:6379

A generated stream drifts: effects change, items come and go. The trainer follows it, and two
servers follow the trainer; a third one gets no more syncs after a while, for comparison. Probes
measure the time from a click to predictions that know it. The trainer is killed once. FOLDER
then contains demo.json, demo.svg, and the output of each part in logs/."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip online demo`."""
    parser.add_argument(
        "--work",
        default="online-demo",
        metavar="FOLDER",
        help="new or empty folder for all files (default: %(default)s)",
    )
    add_option(parser, "minutes", 3.0, "M", "minutes of events")
    text = "impressions per second (default: 2000; 50 if the demo starts its own Kafka)"
    parser.add_argument("--rate", type=float, metavar="N", help=text)
    add_option(parser, "sync-every", 1.0, "S", "seconds between two syncs of the servers")
    for name, like in (("redis", "redis://HOST:6379"), ("kafka", "kafka://HOST:9092")):
        text = f"keep logs in {name.capitalize()}: {like}, or no value to start one here"
        parser.add_argument(f"--{name}", nargs="?", const="own", metavar="URL", help=text)
    add_option(parser, "seed", 7, "N", "random seed of the stream and of the model")


def run(args: argparse.Namespace) -> None:
    """Run the demo and print its results."""
    from cowclip_merlin.demo.online.run import run_demo
    from cowclip_merlin.demo.online.settings import OWN, OWN_KAFKA_RATE, RATE, DemoSettings

    rate = OWN_KAFKA_RATE if args.kafka == OWN else RATE
    settings = DemoSettings(
        minutes=args.minutes,
        rate=rate if args.rate is None else args.rate,
        redis=args.redis,
        kafka=args.kafka,
        sync_every=args.sync_every,
        seed=args.seed,
    )
    print(run_demo(settings, args.work))
