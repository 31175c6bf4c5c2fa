"""`cowclip bench`: measure the throughput of the training step."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone

from cowclip_merlin.bench.settings import BenchSettings
from cowclip_merlin.cli.options.common_options import (
    add_device_option,
    add_overwrite_option,
    check_overwrite_used,
)
from cowclip_merlin.settings import add_options, settings_from

HELP = "measure the speed of the training step by batch size, update, backend and clip"
EXAMPLES = """examples:
  cowclip bench
  cowclip bench --model deepfm,dcnv2 --batch-sizes 1024,65536 --vocabulary 1000000
  cowclip bench --update exact --precision float32,bfloat16 --json step.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip bench`."""
    add_options(parser, BenchSettings)
    add_device_option(parser)
    parser.add_argument("--json", metavar="FILE", help="also write the result to this file")
    add_overwrite_option(parser, "FILE")


def run(args: argparse.Namespace) -> None:
    """Measure the speed and print a table."""
    check_overwrite_used(args, "--json")
    from cowclip_merlin.bench.throughput import format_backends, format_table, measure
    from cowclip_merlin.system.files import check_writable, write_json
    from cowclip_merlin.training.build import choose_device

    settings = settings_from(args, BenchSettings)
    if args.json:
        check_writable(args.json, overwrite=args.overwrite)
    choose_device(args.device)
    result = measure(settings)
    result["date"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    print(format_table(result))
    print(format_backends(result))
    print("ratio: speed relative to the smallest batch with dense updates and no clip")
    print("of MLP: speed relative to the MLP alone; both are medians over the rounds")
    if settings.multi_values:
        print(f"a row has {result['ids_per_row']:.0f} ids, in lists")
    print(f"{result['hardware']}, TensorFlow {result['versions'].get('tensorflow')}")
    if args.json:
        write_json(args.json, result)
