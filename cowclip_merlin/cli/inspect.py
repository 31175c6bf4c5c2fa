"""`cowclip inspect`: show what the clip did in a run, as text and figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cowclip_merlin.cli.options.common_options import check_overwrite_used, print_served_epoch

HELP = "show what the clip did in a run, as text and figures"
EXAMPLES = """examples:
  cowclip inspect RUN
  cowclip inspect RUN --out figures

Reads the diagnostics that cowclip train --diagnostics-every N writes (default: every 100 steps),
even during the run, and writes SVG figures to RUN/figures."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip inspect`."""
    parser.add_argument("run_folder", metavar="RUN", help="folder that cowclip train wrote")
    parser.add_argument(
        "--out", metavar="DIR", help="folder for the figures (default: RUN/figures)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing figures in DIR")


def run(args: argparse.Namespace) -> None:
    """Print the report and write the figures."""
    check_overwrite_used(args, "--out")
    from cowclip_merlin.diagnostics import read_diagnostics
    from cowclip_merlin.diagnostics.figures import FIGURES, write_figures
    from cowclip_merlin.diagnostics.text_report import format_report
    from cowclip_merlin.system.files import check_writable
    from cowclip_merlin.training.run_config import RunConfig
    from cowclip_merlin.training.run_logs import read_metrics

    folder = Path(args.run_folder)
    out = Path(args.out) if args.out else folder / "figures"
    if args.out and out.is_dir():  # RUN/figures always holds the figures of the last call
        for name in FIGURES:
            check_writable(out / f"{name}.svg", overwrite=args.overwrite)
    config, table = RunConfig.load(folder), read_diagnostics(folder)
    print_served_epoch(folder)
    print(format_report(config, read_metrics(folder / "metrics.csv", epochs=sys.maxsize), table))
    files = write_figures(table, out)
    print("\nfigures: " + ", ".join(map(str, files)))
