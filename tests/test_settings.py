"""Settings: a field says all that is known of it, and the command line follows from it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, add_options, option, settings_from, values_from

NAMES = ["a", "b"]


@dataclass(frozen=True, kw_only=True)
class Example(Settings):
    """An example."""

    file: Path = option(help="to read", flag="file", metavar="FILE")
    rows: int = option(help="of the log, see --share", at_least=1, below=10)
    share: float = option(1.0, "of the rows", above=0, at_most=1)
    limit: float | None = option(None, "for all", shown="none", at_least=0)
    names: Sequence[str] = option(("a",), "{choices}", choices=lambda: NAMES, metavar="A,B")
    widths: tuple[int, ...] = option((8, 4), "of layers", at_least=1, unique=True)
    parts: tuple[Path, ...] = option((), "to read, too", nargs="*")
    kind: str = option("plain", "what it is", choices=("plain", "other"))
    fast: bool = option(False, "in a hurry", negatable=True)
    seconds: int = option(0, "to wait", convert=lambda text: int(text.removesuffix("s")))
    tries: int = option(3, "at most", kind=int)
    server: str | None = option(None, "to ask", const="own")


def parsed(*words, **changes):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, Example, **changes)
    return parser.parse_args([str(word) for word in words])


def test_defaults_and_given_values_become_settings():
    assert settings_from(parsed("log", "--rows", 5), Example) == Example(file="log", rows=5)
    words = "log --rows 5 --share 0.5 --limit 2 --names b,a --widths 3 --parts x y --kind other"
    words += " --fast --seconds 7s --tries 4 --server"
    assert settings_from(parsed(*words.split()), Example) == Example(
        file=Path("log"), rows=5, share=0.5, limit=2, names=("b", "a"), widths=(3,), kind="other",
        parts=[Path("x"), "y"], fast=True, seconds=7, tries=4, server="own",
    )  # fmt: skip


def test_a_command_may_change_an_option_and_know_what_was_given():
    args = parsed("log", rows={"default": 2}, widths={"default": None})
    assert args.tries is None and args.widths is None
    found = settings_from(args, Example, share=0.5)
    assert (found.rows, found.tries, found.widths, found.share) == (2, 3, (8, 4), 0.5)
    assert "tries" not in values_from(args, Example)


def test_the_help_and_the_docstring_show_defaults_and_choices():
    parser = argparse.ArgumentParser()
    add_options(parser, Example)
    texts = {action.dest: action.help for action in parser._actions}
    assert texts["share"] == "of the rows (default: 1)" and texts["file"] == "to read"
    assert texts["limit"] == "for all (default: none)"
    assert texts["names"] == "a, b (default: a)" and texts["widths"].endswith("(default: 8,4)")
    assert "Attributes:\n    file: to read\n    rows: of the log, see `share`" in Example.__doc__


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"rows": 0}, "rows is 0; it must be at least 1 and below 10$"),
        ({"rows": 10}, "rows is 10; "),
        ({"rows": 1.0}, "rows is 1.0; it must be at least 1 and below 10 and a whole number$"),
        ({"rows": True}, "rows is True; it must be a whole number$"),
        ({"tries": 2.0}, "tries is 2.0; it must be a whole number$"),
        ({"widths": (8, 4.0)}, "widths is 4.0; it must be at least 1 and a whole number$"),
        ({"share": True}, "share is True; it must be a number$"),
        ({"share": "1"}, "share is '1'; it must be a number$"),
        ({"share": 0.0}, "share is 0.0; it must be above 0 and at most 1$"),
        ({"share": math.nan}, "share is nan; .* and finite$"),
        ({"limit": math.inf}, "limit is inf; it must be at least 0 and finite$"),
        ({"names": ("a", "c")}, "unknown names 'c'; choose one of a, b$"),
        ({"kind": None}, "unknown kind None; choose one of plain, other$"),
        ({"widths": (1, 0)}, "widths is 0; "),
        ({"widths": (1, 1)}, "widths 1,1: give every value once$"),
    ],
)
def test_a_wrong_value_is_named(wrong, words):
    with pytest.raises(InputError, match=words):
        Example(**{"file": "log", "rows": 1} | wrong)


@pytest.mark.parametrize("words", ["log", "--rows 5", "log --rows x", "log --rows 5 --kind wrong"])
def test_the_parser_refuses_what_is_missing_or_of_another_type(words):
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parsed(*words.split())


def test_a_list_of_numbers_has_numbers():
    with pytest.raises(InputError, match="--widths '8,x' is not a list of whole numbers like 8,4"):
        settings_from(parsed("log", "--rows", 5, "--widths", "8,x"), Example)


def test_a_whole_number_of_numpy_is_one_of_python():
    made = Example(file="log", rows=np.int64(4), widths=(np.int32(2),))
    assert type(made.rows) is int and made.rows == 4 and made.widths == (2,)
