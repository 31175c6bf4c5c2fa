"""`cowclip generate`: write a raw log in Criteo's format with a known best AUC."""

from __future__ import annotations

import argparse

from cowclip_merlin.cli.common_options import add_overwrite_option

HELP = "write a raw log in Criteo's format whose best possible AUC is known"
EXAMPLES = """examples:
  cowclip generate --rows 1000000 --seed 7 --out log.txt
  cowclip generate --rows 100000 --out log.txt.gz"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip generate`."""
    parser.add_argument("--rows", type=int, required=True, metavar="N", help="number of rows")
    seed = "random seed of the log (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=1234, metavar="N", help=seed)
    parser.add_argument("--out", required=True, metavar="FILE", help="compressed if it ends in .gz")
    add_overwrite_option(parser, "FILE")


def run(args: argparse.Namespace) -> None:
    """Write the log and print its statistics."""
    from cowclip_merlin.synthetic.criteo_log import generate

    log = generate(args.out, rows=args.rows, seed=args.seed, overwrite=args.overwrite)
    print(
        f"{args.out}: {log.rows:,} rows, {100 * log.click_rate:.2f}% clicks, "
        f"{log.distinct_ids:,} distinct ids\n"
        f"best possible: AUC {log.bayes_auc:.5f}, log loss {log.bayes_log_loss:.5f}"
    )
