"""The parser of a benchmark, and the files that its settings name."""

from __future__ import annotations

import argparse
from pathlib import Path

from cowclip_merlin import choices
from cowclip_merlin.cli.options.commands import CommandParser
from cowclip_merlin.settings.fields import options_of


def make_parser(
    about: str | None, *, device: bool = True, json: bool = True
) -> argparse.ArgumentParser:
    """Make a parser that shows the benchmark's docstring as help and prints errors in one line.

    Args:
        about: the docstring.
        device: whether to add the option `--device` for TensorFlow.
        json: whether to add the options `--json` and `--overwrite`.
    """
    parser = CommandParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if device:
        what = "for TensorFlow; auto: a GPU if it finds one (default: auto)"
        parser.add_argument("--device", default="auto", choices=choices.DEVICES, help=what)
    if json:
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="also write the result to this file"
        )
        replace = "replace existing files"
        parser.add_argument("--overwrite", action="store_true", help=replace)
    return parser


def output_files(settings: object) -> list[Path | None]:
    """List the files to write, from the options of these settings."""
    known = options_of(type(settings))
    return [getattr(settings, name) for name, given in known.items() if given.output]
