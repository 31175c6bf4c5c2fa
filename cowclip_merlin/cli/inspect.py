"""`cowclip inspect`: show what the clip did in a run, as text and figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.cli.options.common_options import check_overwrite_used, print_served_epoch

if TYPE_CHECKING:
    from cowclip_merlin.training.run_config import RunConfig

Bins = Sequence[Mapping[str, str]]

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
    from cowclip_merlin.contrib.diagnostics.report import (
        FIGURES,
        RELIABILITY,
        format_report,
        write_figures,
    )
    from cowclip_merlin.diagnostics import read_diagnostics
    from cowclip_merlin.system.files import check_writable
    from cowclip_merlin.training.run_config import RunConfig, local_run
    from cowclip_merlin.training.run_logs import read_metrics, read_reliability

    folder = local_run(args.run_folder)
    out = Path(args.out) if args.out else folder / "figures"
    if args.out and out.is_dir():  # RUN/figures always holds the figures of the last call
        for name in (*FIGURES, RELIABILITY):
            check_writable(out / f"{name}.svg", overwrite=args.overwrite)
    config, table = RunConfig.load(folder), read_diagnostics(folder)
    print_served_epoch(folder)
    print(format_report(config, read_metrics(folder / "metrics.csv", epochs=sys.maxsize), table))
    bins = read_reliability(folder / "reliability.csv")
    files = write_figures(table, out, _bins_of_served_epoch(folder, config, bins))
    print("\nfigures: " + ", ".join(map(str, files)))


def _bins_of_served_epoch(folder: Path, config: RunConfig, bins: Bins) -> Bins:
    """Return the bins of the epoch whose weights the run serves: the best, or the last one."""
    from cowclip_merlin.training.stopping.early_stopping import kept_scorings

    if not bins:
        return bins
    kept = kept_scorings(folder) if config.settings.early_stopping is not None else []
    epochs = list(dict.fromkeys(each["epoch"] for each in bins))  # one for each scoring
    epoch = epochs[kept[0] - 1] if kept else epochs[-1]
    return [each for each in bins if each["epoch"] == epoch]
