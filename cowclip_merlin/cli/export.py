"""`cowclip export`: write the model of a run for programs without this package."""

from __future__ import annotations

import argparse

from cowclip_merlin.cli.options.common_options import add_device_option, print_served_epoch
from cowclip_merlin.errors import InputError
from cowclip_merlin.serving.triton.model import OFFSETS, VALUES
from cowclip_merlin.serving.triton.repository import RepositorySettings, export_repository
from cowclip_merlin.settings import add_options, values_from

HELP = "write the model of a run as a TensorFlow SavedModel, or for NVIDIA Triton"
EXAMPLES = """examples:
  cowclip export RUN DATA --out MODEL
  cowclip export RUN DATA --out REPO --triton

MODEL: a SavedModel whose signature "serving_default" takes one tensor [b] for each column, with ids
and numbers as in DATA, and returns "probability" [b]; with several labels a tensor named after
each. If TensorFlow refuses a column's name, the
tensor gets a similar name; MODEL/assets.extra/columns.json maps it to the column.

REPO: a model repository for Triton's Python backend. It takes one tensor [b, 1] of raw values for
each column and returns "probability" [b, 1]; with several labels a tensor named after each. Lists
of a column c come as c__values, all strings of the rows, and c__offsets [b + 1], as in Merlin
Systems; vectors as [b, length]. docs/serving.md tells which one to use."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip export`."""
    parser.add_argument("run_folder", metavar="RUN", help="folder that cowclip train wrote")
    parser.add_argument("data", metavar="DATA", help="folder that the run was trained on")
    parser.add_argument("--out", required=True, metavar="MODEL|REPO", help="folder to write")
    triton = parser.add_argument_group("for NVIDIA Triton")
    what = "write a model repository that takes raw values, with the workflow inside"
    triton.add_argument("--triton", action="store_true", help=what)
    add_options(triton, RepositorySettings)
    add_device_option(parser)


def run(args: argparse.Namespace) -> None:
    """Write the model and print its inputs."""
    given = values_from(args, RepositorySettings)
    if args.triton:
        print_served_epoch(args.run_folder)
        _export_repository(args, RepositorySettings(**given))
        return
    for name in given:
        raise InputError(f"--{name.replace('_', '-')} is for Triton; add --triton, or omit it")
    print_served_epoch(args.run_folder)
    _export_saved_model(args)


def _export_repository(args: argparse.Namespace, settings: RepositorySettings) -> None:

    columns = export_repository(
        args.run_folder, args.data, out=args.out, settings=settings, device=args.device
    )
    version = f"{settings.model_name}, version {settings.model_version}"
    print(f"{args.out}: model repository for Triton, model {version}")
    for kind, what in (("categorical", "string"), ("continuous", "float64")):
        if columns[kind]:
            print(f"  {what} [b, 1]: {', '.join(columns[kind])}")
    for name in columns.get("lists", ()):
        print(f"  string [m]: {name}{VALUES}, and int32 [b + 1]: {name}{OFFSETS}")
    for name, length in columns.get("vectors", {}).items():
        print(f"  float32 [b, {length}]: {name}")
    print(f"  gives {', '.join(columns['outputs'])}, float32 [b, 1]")


def _export_saved_model(args: argparse.Namespace) -> None:
    from cowclip_merlin.training import export_run, input_columns
    from cowclip_merlin.training.trained_run import output_labels

    inputs = export_run(args.run_folder, args.data, out=args.out, device=args.device)
    columns = input_columns(args.out)
    print(f"{args.out}: SavedModel, signature serving_default")
    kinds = {name: (each.dtype, tuple(each.shape)[1:]) for name, each in inputs.items()}
    for spec in dict.fromkeys(kinds.values()):
        names = [name for name, kind in kinds.items() if kind == spec]
        shapes = {(): "[b]", (None,): "[b, k], filled with 0"}
        shape = shapes.get(spec[1]) or f"[b, {spec[1][0]}]"
        words = ", ".join(_describe_input(name, columns[name]) for name in names)
        print(f"  {spec[0].name} {shape}: {words}")
    print(f"  gives {', '.join(output_labels(args.out)) or 'probability'}, float32 [b]")


def _describe_input(name: str, column: str) -> str:
    return name if name == column else f"{name} (column {column!r})"
