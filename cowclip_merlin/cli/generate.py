"""`cowclip generate`: write a raw log with a known best AUC."""

from __future__ import annotations

import argparse

from cowclip_merlin.cli.options.common_options import add_overwrite_option
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import add_options, values_from
from cowclip_merlin.synthetic.drifting_log import DriftingLogSize, generate_drifting

HELP = "write a raw log whose best possible AUC is known: in Criteo's format, or one that drifts"
EXAMPLES = """examples:
  cowclip generate --rows 1000000 --seed 7 --out log.txt
  cowclip generate --rows 100000 --out log.txt.gz
  cowclip generate --crossed --rows 1000000 --seed 7 --out crossed.txt
  cowclip generate --drift --rows 1000000 --days 7 --out events.csv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip generate`."""
    add_options(parser, DriftingLogSize, "rows", "seed")
    parser.add_argument("--out", required=True, metavar="FILE", help="compressed if it ends in .gz")
    crossed = "about as many ids per row as Criteo, most of them rare; adds crossed columns"
    parser.add_argument("--crossed", action="store_true", help=crossed)
    drift = "log with times: click rates change, items come and go; also writes FILE.yaml"
    parser.add_argument("--drift", action="store_true", help=drift)
    days = {"default": None, "shown": str(DriftingLogSize.days)}
    days["help"] = "with --drift: days that the log covers"
    add_options(parser, DriftingLogSize, "days", days=days)
    add_overwrite_option(parser, "FILE")


def run(args: argparse.Namespace) -> None:
    """Write the log and print its statistics."""
    if args.drift:
        _run_drift(args)
        return
    from cowclip_merlin.synthetic.criteo_log import CROSSED, GroundTruthSettings, generate

    if args.days is not None:
        raise InputError(f"--days {args.days}: only a log with --drift has days; add --drift")
    log = generate(
        args.out,
        rows=args.rows,
        seed=args.seed,
        ground_truth=CROSSED if args.crossed else GroundTruthSettings(),
        overwrite=args.overwrite,
    )
    print(
        f"{args.out}: {log.rows:,} rows, {100 * log.click_rate:.2f}% clicks, "
        f"{log.distinct_ids:,} distinct ids\n"
        f"best possible: AUC {log.bayes_auc:.5f}, log loss {log.bayes_log_loss:.5f}"
    )


def _run_drift(args: argparse.Namespace) -> None:

    if args.crossed:
        raise InputError("--crossed: a log with --drift has no crossed columns; drop one option")
    size = values_from(args, DriftingLogSize)
    log = generate_drifting(args.out, **size, overwrite=args.overwrite)
    print(
        f"{args.out}: {log.rows:,} rows in {log.days} days, {100 * log.click_rate:.2f}% clicks, "
        f"{log.distinct_ids:,} distinct ids, {log.new_items:,} new items a day\n"
        f"{args.out}.yaml: its features file\n"
        f"best possible: AUC {log.bayes_auc:.5f}, log loss {log.bayes_log_loss:.5f}"
    )
