"""`cowclip export`: write the model of a run for programs without this package."""

from __future__ import annotations

import argparse

from cowclip_merlin.cli.options.common_options import add_device_option

HELP = "write the model of a run as a TensorFlow SavedModel"
EXAMPLES = """examples:
  cowclip export RUN DATA --out MODEL

Its signature "serving_default" takes one tensor [b] for each column, with ids and numbers as in
DATA, and returns "probability" [b]. If TensorFlow refuses a column's name, the tensor gets a
similar name; MODEL/assets.extra/columns.json maps it to the column. docs/serving.md shows how raw
values become ids."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip export`."""
    parser.add_argument("run_folder", metavar="RUN", help="folder that cowclip train wrote")
    parser.add_argument("data", metavar="DATA", help="folder that the run was trained on")
    parser.add_argument("--out", required=True, metavar="MODEL", help="folder to write")
    add_device_option(parser)


def run(args: argparse.Namespace) -> None:
    """Write the model and print its inputs."""
    from cowclip_merlin.training import export_run, input_columns

    inputs = export_run(args.run_folder, args.data, out=args.out, device=args.device)
    columns = input_columns(args.out)
    print(f"{args.out}: SavedModel, signature serving_default")
    for kind in dict.fromkeys(spec.dtype.name for spec in inputs.values()):
        names = [name for name, spec in inputs.items() if spec.dtype.name == kind]
        print(f"  {kind} [b]: {', '.join(_describe_input(name, columns[name]) for name in names)}")
    print("  gives probability, float32 [b]")


def _describe_input(name: str, column: str) -> str:
    return name if name == column else f"{name} (column {column!r})"
