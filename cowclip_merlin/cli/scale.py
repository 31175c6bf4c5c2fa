"""`cowclip scale`: print the hyper-parameters of every rule side by side."""

from __future__ import annotations

import argparse

from cowclip_merlin.scaling import PRESETS, RULES, scale

HELP = "print the hyper-parameters of every scaling rule side by side"
EXAMPLES = """examples:
  cowclip scale --dataset criteo --to 131072
  cowclip scale --dataset avazu --to 4096 --rule cowclip"""

ROWS = ("embedding_lr", "dense_lr", "l2", "beta_1", "beta_2", "epsilon", "r", "zeta", "init_std")
ROWS += ("warmup_epochs", "micro_batches")
CLIP_HYPERPARAMETERS = ("r", "zeta")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip scale`."""
    dataset = "data set of the paper to take values from (default: %(default)s)"
    parser.add_argument("--dataset", default="criteo", choices=sorted(PRESETS), help=dataset)
    parser.add_argument("--to", type=int, required=True, metavar="N", help="batch size in rows")
    parser.add_argument("--rule", choices=sorted(RULES), help="show only this rule")


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    rules = [args.rule] if args.rule else list(RULES)
    columns = {rule: scale(args.dataset, to=args.to, rule=rule) for rule in rules}
    print(f"{args.dataset}, batch {args.to:,}; rules without the clip start from the baseline\n")
    print(_line("", rules))
    for name in ROWS:
        cells = [
            "-"
            if name in CLIP_HYPERPARAMETERS and values.clip != "cowclip"
            else f"{getattr(values, name):.6g}"
            for values in columns.values()
        ]
        print(_line(name, cells))
    print(_line("clip", [values.clip for values in columns.values()]))


def _line(head: str, cells: list[str]) -> str:
    return f"{head:<14}" + "".join(f"{cell:>13}" for cell in cells)
