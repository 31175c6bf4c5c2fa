"""`cowclip inspect`: what the clip did in a run, as text and figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "show what the clip did in a run, as text and figures"
EXAMPLES = """examples:
  cowclip inspect RUN
  cowclip inspect RUN --out figures

Reads what cowclip train --diagnostics-every N wrote (by default every 100 steps), also while the
run is going on, and writes SVG figures to RUN/figures."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `cowclip inspect`."""
    parser.add_argument("run_folder", metavar="RUN", help="folder that cowclip train wrote")
    parser.add_argument("--out", metavar="DIR", help="folder for the figures (default RUN/figures)")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace figures that are in DIR already"
    )


def run(args: argparse.Namespace) -> None:
    """Print the report and write the figures."""
    from cowclip_merlin.diagnostics import read_diagnostics
    from cowclip_merlin.diagnostics.figures import FIGURES, write_figures
    from cowclip_merlin.diagnostics.text_report import format_report
    from cowclip_merlin.system.files import check_writable
    from cowclip_merlin.training.run_config import RunConfig
    from cowclip_merlin.training.run_logs import read_metrics

    folder = Path(args.run_folder)
    out = Path(args.out) if args.out else folder / "figures"
    if args.out and out.is_dir():  # the run's own figures are always those of the last call
        for name in FIGURES:
            check_writable(out / f"{name}.svg", overwrite=args.overwrite)
    config, table = RunConfig.load(folder), read_diagnostics(folder)
    print(format_report(config, read_metrics(folder / "metrics.csv", epochs=sys.maxsize), table))
    files = write_figures(table, out)
    print("\nfigures: " + ", ".join(map(str, files)))
