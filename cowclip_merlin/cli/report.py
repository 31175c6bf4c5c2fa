"""`cowclip report`: make one HTML page from the results of experiments."""

from __future__ import annotations

import argparse
from pathlib import Path

from cowclip_merlin.cli.options.common_options import add_overwrite_option

HELP = "make one self-contained HTML page from the results of experiments"
EXAMPLES = """examples:
  cowclip report RESULTS --out report.html
  cowclip report criteo avazu --out report.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip report`."""
    parser.add_argument(
        "results", nargs="+", metavar="RESULTS", help="folders that cowclip experiment wrote"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="page to write")
    add_overwrite_option(parser, "FILE")


def run(args: argparse.Namespace) -> None:
    """Write the page and print a summary."""
    from cowclip_merlin.experiments.report import write_report

    summary = write_report(args.results, Path(args.out), overwrite=args.overwrite)
    print(f"{args.out}: {summary}")
