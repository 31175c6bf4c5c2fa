"""`cowclip bench`: measure the throughput of the training step."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from pathlib import Path

from cowclip_merlin import choices
from cowclip_merlin.cli.options.common_options import (
    add_device_option,
    add_overwrite_option,
    check_overwrite_used,
)
from cowclip_merlin.settings import parse_integers

HELP = "measure the speed of the training step by batch size, update, backend and clip"
EXAMPLES = """examples:
  cowclip bench
  cowclip bench --model deepfm,dcnv2 --batch-sizes 1024,65536 --vocabulary 1000000
  cowclip bench --update exact --precision float32,bfloat16 --json step.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip bench`."""
    several = {
        "--model": ("deepfm", choices.MODELS),
        "--update": (",".join(choices.UPDATES), choices.UPDATES),
        "--backend": ("auto", choices.BACKENDS),
        "--clip": ("none,cowclip", choices.exact_clips()),
        "--precision": ("float32", choices.PRECISIONS),
    }
    for flag, (default, known) in several.items():
        text = f"any of {', '.join(known)} (default: %(default)s)"
        parser.add_argument(flag, default=default, metavar="A,B", help=text)
    parser.add_argument(
        "--batch-sizes",
        default="1024,8192,65536",
        metavar="N,N",
        help="rows per step (default: %(default)s)",
    )
    numbers = {
        "--vocabulary": (1_000_000, "ids in all 26 fields together"),
        "--rounds": (5, "rounds; each one measures every configuration"),
        "--rows-per-turn": (None, "rows per measurement, at least one batch"),
    }
    for flag, (default, text) in numbers.items():
        shown = "65,536, on a GPU 2,097,152" if default is None else "%(default)s"
        text = f"{text} (default: {shown})"
        parser.add_argument(flag, type=int, default=default, metavar="N", help=text)
    text = "compile the layers after the lookups, and the bare MLP, with XLA"
    parser.add_argument("--jit-compile", action="store_true", help=text)
    add_device_option(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the result to this file"
    )
    add_overwrite_option(parser, "FILE")


def run(args: argparse.Namespace) -> None:
    """Measure the speed and print a table."""
    check_overwrite_used(args, "--json")
    from cowclip_merlin.bench.throughput import (
        BenchSettings,
        format_backends,
        format_table,
        measure,
    )
    from cowclip_merlin.system.files import check_writable, write_json
    from cowclip_merlin.training.build import choose_device

    settings = BenchSettings(
        models=args.model.split(","),
        batches=parse_integers("--batch-sizes", args.batch_sizes, like="1024,8192"),
        updates=args.update.split(","),
        backends=args.backend.split(","),
        clips=args.clip.split(","),
        precisions=args.precision.split(","),
        jit_compile=args.jit_compile,
        vocabulary=args.vocabulary,
        rounds=args.rounds,
        rows_per_turn=args.rows_per_turn,
    )
    if args.json:
        check_writable(args.json, overwrite=args.overwrite)
    choose_device(args.device)
    result = measure(settings)
    result["date"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    print(format_table(result))
    print(format_backends(result))
    print("ratio: speed relative to the smallest batch with dense updates and no clip")
    print("of MLP: speed relative to the MLP alone; both are medians over the rounds")
    print(f"{result['hardware']}, TensorFlow {result['versions'].get('tensorflow')}")
    if args.json:
        write_json(args.json, result)
