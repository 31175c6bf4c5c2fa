"""`cowclip evaluate`: score a prepared folder with a trained run."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from cowclip_merlin.cli.options.common_options import (
    add_device_option,
    add_overwrite_option,
    check_overwrite_used,
    print_served_epoch,
)

if TYPE_CHECKING:
    from cowclip_merlin.training.evaluation import AucByColumn, Evaluation, RegressionEvaluation

HELP = "score a prepared folder with a trained run"
EXAMPLES = """examples:
  cowclip evaluate RUN DATA
  cowclip evaluate RUN DATA --predictions scores.parquet
  cowclip evaluate RUN DATA --against OTHER_RUN
  cowclip evaluate RUN DATA --by user"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip evaluate`."""
    parser.add_argument("run_folder", metavar="RUN", help="folder that cowclip train wrote")
    parser.add_argument("data", metavar="DATA", help="folder that cowclip prepare wrote")
    split = "rows of DATA to score; validation: those of prepare --validation (default: test)"
    splits = ("train", "validation", "test")
    parser.add_argument("--split", default="test", choices=splits, help=split)
    parser.add_argument(
        "--predictions",
        metavar="FILE",
        help=".parquet, .csv or .csv.gz file to write: row, label, probability; of several labels "
        "columns for each",
    )
    against = "another run on the same data, to compare the AUC with"
    parser.add_argument("--against", metavar="RUN", help=against)
    by = "also print the mean AUC of the rows of each value of a categorical column, like the user"
    parser.add_argument("--by", metavar="COL", help=by)
    add_overwrite_option(parser, "FILE")
    add_device_option(parser)


def run(args: argparse.Namespace) -> None:
    """Score the rows and print exact metrics."""
    check_overwrite_used(args, "--predictions")
    from cowclip_merlin.training import evaluate_run

    print_served_epoch(args.run_folder, args.against)
    result = evaluate_run(
        args.run_folder,
        args.data,
        split=args.split,
        predictions=args.predictions,
        against=args.against,
        by=args.by,
        overwrite=args.overwrite,
        device=args.device,
    )
    for name, found in (result.targets or {"": result}).items():
        _print_metrics(f"{args.split}{name and ' ' + name}", found, args.against)
    if args.predictions:
        print(f"predictions: {args.predictions}")


def _print_metrics(
    rows: str, result: Evaluation | RegressionEvaluation, against: str | None
) -> None:
    if not hasattr(result, "auc"):
        print(f"{rows}: {result.rows:,} rows, RMSE {_number(result.rmse)}")
        return
    print(
        f"{rows}: {result.rows:,} rows, AUC {_auc(result.auc, result.auc_error)}, "
        f"log loss {_number(result.log_loss)}, "
        f"normalized entropy {_entropy(result.normalized_entropy)}, "
        f"calibration {_number(result.calibration)}"
    )
    if result.by:
        print(_by_column(result.by, result.rows))
    if found := result.difference:
        side = "below" if found.value < 0 else "above"
        print(
            f"AUC {abs(found.value):.6f} {side} that of {against} ({_error(found.error)})"
            if found.value
            else f"the same AUC as {against} ({_error(found.error)})"
        )


def _by_column(by: AucByColumn, rows: int) -> str:
    """Describe the mean AUC by the values of a column.

    >>> from cowclip_merlin.metrics import GroupedAuc
    >>> from cowclip_merlin.training.evaluation import AucByColumn
    >>> found = GroupedAuc(auc=0.75, groups=2, all_groups=3, rows=50)
    >>> print(_by_column(AucByColumn(column="user", grouped=found, unknown_rows=9), 100))
    AUC by user 0.750000: 2 of 3 values have both labels, with 50.0% of the rows
    9 rows whose user is missing, new or rare are left out
    """
    found = by.grouped
    text = (
        f"AUC by {by.column} {_number(found.auc)}: {found.groups:,} of {found.all_groups:,} values "
        f"have both labels, with {found.rows / rows:.1%} of the rows"
    )
    if by.unknown_rows:
        text += f"\n{by.unknown_rows:,} rows whose {by.column} is missing, new or rare are left out"
    return text


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.6f}"


def _entropy(value: float) -> str:
    """Return a normalized entropy, and what one above 1 means.

    >>> _entropy(0.5), _entropy(1.25)
    ('0.500000', '1.250000 (worse than always answering the click rate)')
    """
    worse = " (worse than always answering the click rate)" if value > 1 else ""
    return _number(value) + worse


def _auc(auc: float, error: float) -> str:
    if math.isnan(auc):
        return "- (all rows have the same label)"
    return f"{auc:.6f} ({_error(error)})"


def _error(error: float) -> str:
    if math.isnan(error):
        return "no standard error: a class has one row"
    return f"standard error {error:.6f}"
