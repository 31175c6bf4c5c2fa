"""What several commands have in common on their command lines."""

from __future__ import annotations

import argparse

from cowclip_merlin import choices


def add_overwrite_option(parser: argparse.ArgumentParser, what: str) -> None:
    """The option `--overwrite`.

    Args:
        parser: of a command.
        what: metavar of the file that is replaced.
    """
    parser.add_argument("--overwrite", action="store_true", help=f"replace {what} if it is there")


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where to compute."""
    parser.add_argument(
        "--device",
        default="auto",
        choices=choices.DEVICES,
        help="where to compute (default: auto, a GPU if there is one)",
    )


def parse_integers(option: str, text: str, *, like: str) -> tuple[int, ...]:
    """Whole numbers between commas.

    Args:
        option: that took the text.
        text: what it took.
        like: an example, for the complaint.

    Raises:
        InputError: it is something else.

    >>> parse_integers("--mlp", "400,200", like="400,400,400")
    (400, 200)
    """
    from cowclip_merlin.errors import InputError

    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise InputError(f"{option} {text!r} is no list of whole numbers like {like}") from None
