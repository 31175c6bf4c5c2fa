"""`cowclip prepare`: turn a raw click log into a prepared folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from cowclip_merlin import choices
from cowclip_merlin.cli.options.common_options import FILES_HELP, add_device_option, parse_names

HELP = "turn a raw click log into a prepared folder"
EXAMPLES = """examples:
  cowclip prepare criteo train.txt --out DATA
  cowclip prepare avazu train.gz --out DATA --split time
  cowclip prepare table log.csv --out DATA --label y --categorical user,item --continuous age
  cowclip prepare table films.csv --out DATA --label y --categorical user --multi genres
  cowclip prepare criteo new.txt --out NEW --like DATA"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip prepare`."""
    kind = "format of the log; table: columns that you name"
    parser.add_argument("kind", choices=("criteo", "avazu", "table"), help=kind)
    parser.add_argument("files", nargs="+", metavar="FILE", help=FILES_HELP)
    parser.add_argument("--out", required=True, metavar="DATA", help="folder to write")
    parser.add_argument("--label", metavar="COL", help="table: label column of 0 and 1")
    parser.add_argument(
        "--categorical", default="", metavar="COLS", help="table: id columns, as a,b,c"
    )
    parser.add_argument(
        "--continuous", default="", metavar="COLS", help="table: numeric columns, as x,y,z"
    )
    _add_multi_options(parser)
    parser.add_argument(
        "--separator",
        metavar="CHAR",
        help="table: between columns of text, such as ';' or tab (default: by each file's name, "
        "tab in .tsv and .txt, else a comma)",
    )
    parser.add_argument(
        "--columns",
        default="",
        metavar="COLS",
        help="table: all columns of text without a header, as y,a,b",
    )
    parser.add_argument(
        "--split",
        default="random",
        choices=choices.SPLIT_METHODS,
        help="time: the last rows, in the order of the files, are the test rows (default: random)",
    )
    parser.add_argument(
        "--test-fraction",
        type=float,
        metavar="F",
        help="share of the test rows (default: criteo 0.1, by time 1/7; avazu 0.2; table 0.1)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed of the random split (default: 1234)",
    )
    parser.add_argument(
        "--freq-threshold",
        type=int,
        default=0,
        metavar="N",
        help="ids seen fewer times share one row (default: 0, each has its own)",
    )
    parser.add_argument("--log", action="store_true", help="apply log(1 + x) to continuous columns")
    parser.add_argument(
        "--fit-on",
        default="train",
        choices=tuple(choices.FIT_ON),
        help="rows that ids, counts and ranges are learned from; all: also the test rows, as in "
        "the authors' code (default: train)",
    )
    parser.add_argument(
        "--like", metavar="DATA", help="use this folder's ids; all rows are test rows"
    )
    parser.add_argument("--hugectr", action="store_true", help="also write HugeCTR's input files")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="running Dask scheduler to use")
    add_device_option(parser)
    parser.add_argument(
        "--max-bad-fraction",
        type=float,
        default=0.001,
        metavar="F",
        help="largest share of damaged rows; above it, nothing is written (default: 0.001)",
    )
    parser.add_argument(
        "--partition-mb",
        type=float,
        default=32,
        metavar="N",
        help="MB of text to read at a time, 0.001 to 1024; memory use grows with it (default: 32)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace DATA if it is a prepared folder"
    )


def _add_multi_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of columns with several values per row."""
    parser.add_argument(
        "--multi",
        default="",
        metavar="COLS",
        help="table: id columns with several values per row, lists of parquet or text, as a,b,c",
    )
    parser.add_argument(
        "--multi-separator",
        default="|",
        metavar="TEXT",
        help="table: between the values of text in these columns (default: %(default)s)",
    )
    parser.add_argument(
        "--max-values",
        type=int,
        default=0,
        metavar="N",
        help="table: keep at most N values of a row in these columns (default: 0, all)",
    )
    parser.add_argument(
        "--keep-values",
        default="first",
        choices=choices.KEEP_VALUES,
        help="table: which ones to keep with --max-values (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    """Prepare the log."""
    from cowclip_merlin.workflows import PrepareSettings, Recipe, prepare

    prepare(
        PrepareSettings(
            files=tuple(Path(file) for file in args.files),
            out=Path(args.out),
            kind=args.kind,
            label=args.label,
            categorical=parse_names(args.categorical),
            continuous=parse_names(args.continuous),
            multi=dict.fromkeys(parse_names(args.multi), args.multi_separator),
            max_values=args.max_values,
            keep_values=args.keep_values,
            separator=args.separator,
            columns=_all_names(args.columns),
            like=None if args.like is None else Path(args.like),
            split=args.split,
            test_fraction=args.test_fraction,
            seed=args.seed,
            recipe=Recipe(freq_threshold=args.freq_threshold, log=args.log, fit_on=args.fit_on),
            max_bad_fraction=args.max_bad_fraction,
            partition_mb=args.partition_mb,
            hugectr=args.hugectr,
            scheduler=args.scheduler,
            device=args.device,
            overwrite=args.overwrite,
        )
    )


def _all_names(text: str) -> tuple[str, ...]:
    """Parse names between commas; unlike `parse_names`, an empty one counts as a column."""
    return tuple(name.strip() for name in text.split(",")) if text else ()
