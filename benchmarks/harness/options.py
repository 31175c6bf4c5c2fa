"""Make command line options from the fields of a settings dataclass."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from cowclip_merlin import choices
from cowclip_merlin.cli import CommandParser
from cowclip_merlin.cli.options.common_options import parse_integers

Settings = TypeVar("Settings")


@dataclass(frozen=True, kw_only=True)
class Option:
    """How a field of settings appears on the command line.

    Attributes:
        help: help text in one line.
        flag: name such as "--rounds"; None: the name of the field.
        metavar: name of the value in the help; None: chosen by type.
        kind: type of the value, if it is not the type of the default.
        nargs: "+" or "*" for values separated by spaces; None for values separated by commas.
        choices: the allowed values.
        convert: converts the value of the option to that of the field.
        output: whether the value is a file to write.
    """

    help: str
    flag: str | None = None
    metavar: str | None = None
    kind: Callable[[str], Any] | None = None
    nargs: str | None = None
    choices: Sequence[str] | None = None
    convert: Callable[[Any], Any] | None = None
    output: bool = False


def option(default: Any, help: str, **details: Any) -> Any:
    """Define a field of a settings dataclass that is also an option on the command line.

    Args:
        default: default of the field: a number, a name, a path, or a tuple of numbers or names.
        help: help text in one line.
        details: other attributes of `Option`.

    >>> @dataclass(frozen=True)
    ... class Example:
    ...     mlp: tuple[int, ...] = option((8, 4), "widths")
    >>> parser = argparse.ArgumentParser()
    >>> add_options(parser, Example)
    >>> parser.parse_args([]).mlp
    '8,4'
    >>> settings_from(parser.parse_args(["--mlp", "9"]), Example)
    Example(mlp=(9,))
    """
    return field(default=default, metadata={"option": Option(help=help, **details)})


def make_parser(
    about: str | None, *, device: bool = True, json: bool = True
) -> argparse.ArgumentParser:
    """Make a parser that shows the benchmark's docstring as help and prints errors in one line.

    Args:
        about: the docstring.
        device: whether to add the option `--device` for TensorFlow.
        json: whether to add the options `--json` and `--overwrite`.
    """
    parser = CommandParser(description=about, formatter_class=_Help)
    if device:
        what = "for TensorFlow; auto: a GPU if it finds one"
        parser.add_argument("--device", default="auto", choices=choices.DEVICES, help=what)
    if json:
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="also write the result to this file"
        )
        replace = "replace existing files"
        parser.add_argument("--overwrite", action="store_true", help=replace)
    return parser


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the lines of the docstring and adds the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def add_options(parser: argparse.ArgumentParser, settings: type) -> None:
    """Add the options of a settings dataclass.

    Args:
        parser: the parser to add them to.
        settings: class with fields made by `option`.
    """
    for each, given in _options(settings):
        parser.add_argument(_flag(each, given), **_arguments(each.default, given))


def _arguments(default: Any, given: Option) -> dict[str, Any]:
    """Return the arguments of `add_argument` for one option."""
    if given.choices:
        return {"default": default, "choices": given.choices, "help": given.help}
    if given.nargs:
        numbers = {"type": int, "nargs": given.nargs, "default": list(default)}
        return numbers | {"metavar": given.metavar or "N", "help": given.help}
    if given.kind:  # a default of None has no text
        shown = given.help if default is None else f"{given.help} (default: {default})"
        return {"type": given.kind, "metavar": given.metavar or "N", "help": shown}
    if isinstance(default, tuple):
        joined = ",".join(map(str, default))
        return {"default": joined, "metavar": "A,B,C", "help": given.help}
    metavar = {int: "N", float: "X", str: "NAME"}.get(type(default), "DIR")
    kind = Path if metavar == "DIR" else type(default)
    return {"type": kind, "default": default, "metavar": metavar, "help": given.help}


def settings_from(args: argparse.Namespace, settings: type[Settings], **others: Any) -> Settings:
    """Build the settings from the command line.

    Args:
        args: parsed arguments, of a parser with `add_options`.
        settings: class of the settings.
        others: values of fields that are not options.

    Raises:
        InputError: if a value is wrong.
    """
    values = dict(others)
    for each, given in _options(settings):
        value = getattr(args, _flag(each, given)[2:].replace("-", "_"))
        if value is not None:
            values[each.name] = _value(each, given, value)
    return settings(**values)


def _value(each: Field, given: Option, value: Any) -> Any:
    if given.convert:
        return given.convert(value)
    if not isinstance(each.default, tuple):
        return value
    if isinstance(value, list):
        return tuple(value)
    if isinstance(each.default[0], int):
        like = ",".join(map(str, each.default))
        return parse_integers(_flag(each, given), value, like=like)
    return tuple(value.split(","))


def output_files(settings: Any) -> list[Path | None]:
    """List the files to write, from the options of these settings."""
    return [
        getattr(settings, each.name) for each, given in _options(type(settings)) if given.output
    ]


def _options(settings: Any) -> Iterator[tuple[Field, Option]]:
    for each in fields(settings):
        if "option" in each.metadata:
            yield each, each.metadata["option"]


def _flag(each: Field, given: Option) -> str:
    return given.flag or "--" + each.name.replace("_", "-")
