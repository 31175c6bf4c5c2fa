"""`cowclip score`: score raw rows, with or without labels, with a trained run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from cowclip_merlin.cli.options.common_options import (
    add_device_option,
    add_overwrite_option,
    print_served_epoch,
)
from cowclip_merlin.settings import add_options, parse_names
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.raw.values.value_text import read_as

HELP = "score raw rows, with or without labels, with a trained run"
EXAMPLES = """examples:
  cowclip score RUN new.csv --out scores.parquet
  cowclip score RUN part1.parquet part2.parquet --out scores.parquet --keep user,request"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip score`."""
    parser.add_argument("run_folder", metavar="RUN", help="folder that cowclip train wrote")
    add_options(parser, PrepareSettings, "files", files={"metavar": "NEW"})
    out = ".parquet, .csv or .csv.gz file to write: row, the kept columns, probability (of several "
    out += "labels for each)"
    parser.add_argument("--out", required=True, metavar="FILE", help=out)
    data = "folder that RUN was trained on (default: where it was then)"
    parser.add_argument("--data", metavar="DATA", help=data)
    keep = "columns of NEW to copy to FILE, as a,b,c"
    parser.add_argument("--keep", default="", metavar="COLS", help=keep)
    add_options(parser, PrepareSettings, "max_bad_fraction")
    allow = "columns that may be far more unknown than in the test rows of DATA, as a,b"
    parser.add_argument("--allow-unknown", default="", metavar="COLS", help=allow)
    add_overwrite_option(parser, "FILE")
    add_device_option(parser)


def run(args: argparse.Namespace) -> None:
    """Score the rows, and print what was damaged or unknown."""
    from cowclip_merlin.training import score_files

    print_served_epoch(args.run_folder)
    found = score_files(
        args.run_folder,
        args.files,
        out=args.out,
        data=args.data,
        keep=parse_names(args.keep),
        max_bad_fraction=args.max_bad_fraction,
        allow_unknown=parse_names(args.allow_unknown),
        overwrite=args.overwrite,
        device=args.device,
    )
    for bad in found.first_damaged:
        print(f"damaged: {bad.file}:{bad.line}: {bad.reason}")
    damaged = f"; damaged and left out: {found.damaged:,}" if found.damaged else ""
    print(f"{args.out}: {found.rows:,} rows{damaged}")
    for line in read_as(found.whole_floats, remedy=False):
        print(line)
    print(f"unknown values: {_shares(found.unknown)}")


def _shares(unknown: Mapping[str, float]) -> str:
    """Describe the columns with unknown values.

    >>> _shares({"user": 0.125, "item": 0.0, "shop": 1e-6}), _shares({"user": 0.0})
    ('user 12.50%, shop under 0.01%; none in 1 other column', 'none')
    """
    found = {name: share for name, share in unknown.items() if share}
    if not found:
        return "none"
    words = [f"{n} {x:.2%}" if x >= 1e-4 else f"{n} under 0.01%" for n, x in found.items()]
    others = len(unknown) - len(found)
    end = f"; none in {others} other column{'s'[: others != 1]}" if others else ""
    return ", ".join(words) + end
