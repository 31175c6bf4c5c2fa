"""Options on the command line from the fields of settings, and settings from the options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any, TypeVar

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings.fields import Option, options_of

Made = TypeVar("Made")
_KINDS = {"int": int, "float": float, "str": str, "Path": str, "FilePath": str}
_METAVARS = {"int": "N", "float": "X", "str": "NAME", "Path": "DIR", "FilePath": "DIR"}


def add_options(
    parser: argparse._ActionsContainer, settings: type, *names: str, **changes: Mapping[str, Any]
) -> None:
    """Add options for the fields of settings.

    Args:
        parser: the parser, or a group of its arguments.
        settings: class with fields made by `option`.
        names: the fields, in the order of the help; all of them without a name.
        changes: field -> attributes of its `Option` that differ for this command.

    >>> from dataclasses import dataclass
    >>> from cowclip_merlin.settings import Settings, option
    >>> @dataclass(frozen=True)
    ... class Example(Settings):
    ...     batch: int = option(help="rows per step")
    ...     mlp: tuple[int, ...] = option((8, 4), "widths")
    >>> parser = argparse.ArgumentParser()
    >>> add_options(parser, Example, batch={"default": 2})
    >>> parser.parse_args([]).mlp
    '8,4'
    >>> settings_from(parser.parse_args(["--mlp", "9"]), Example)
    Example(batch=2, mlp=(9,))
    """
    known = options_of(settings)
    for name in names or known:
        _add_option(parser, replace(known[name], **changes.get(name, {})))


def _add_option(parser: argparse._ActionsContainer, given: Option) -> None:
    shown = _shown(given.default) if given.shown is None else given.shown
    shown = "" if given.positional else shown
    words = f"{given.words} (default: {shown})" if shown else given.words
    parser.add_argument(given.option, help=words, **_required(given), **_value_arguments(given))


def _shown(default: Any) -> str:
    """Return a default as the help shows it; no words for one that means nothing.

    >>> _shown(1.0), _shown((8, 4)), _shown(None)
    ('1', '8,4', '')
    """
    if default is MISSING or default is None or isinstance(default, bool):
        return ""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def _required(given: Option) -> dict[str, Any]:
    """Return whether the option is required, or its default."""
    if given.positional:
        return {}
    if given.default is MISSING:
        return {"required": True}
    if given.kind or not isinstance(given.default, tuple):
        path = isinstance(given.default, Path)
        return {"default": None if given.kind else str(given.default) if path else given.default}
    return {"default": list(given.default) if given.nargs else _shown(given.default)}


def _value_arguments(given: Option) -> dict[str, Any]:
    """Return the arguments of `add_argument` that describe the value."""
    if given.of == "bool":
        switch = argparse.BooleanOptionalAction if given.negatable else "store_true"
        return {"action": switch}
    words: dict[str, Any] = {"nargs": given.nargs} if given.nargs else {}
    words |= {"nargs": "?", "const": given.const} if given.const else {}
    if given.choices is not None and given.metavar is None:
        return words | {"choices": given.known}
    if given.many and not given.nargs:
        return {"metavar": given.metavar or "A,B,C"}
    kind = given.kind or (str if given.convert else _KINDS[given.of])
    return words | {"type": kind, "metavar": given.metavar or _METAVARS[given.of]}


def values_from(args: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Return the values of fields that the parsed arguments have, without those that are None.

    Raises:
        InputError: if a text is not a list of whole numbers.
    """
    given = {
        name: (each, getattr(args, each.dest, None)) for name, each in options_of(settings).items()
    }
    return {name: _value(each, x) for name, (each, x) in given.items() if x is not None}


def settings_from(args: argparse.Namespace, settings: type[Made], **others: Any) -> Made:
    """Build settings from parsed arguments.

    Args:
        args: of a parser with `add_options`.
        settings: class of the settings.
        others: values of fields that are not options, or that replace the options.

    Raises:
        InputError: if a value is wrong.
    """
    return settings(**(values_from(args, settings) | others))


def _value(given: Option, value: Any) -> Any:
    if given.convert and value != given.default:
        return given.convert(value)
    if isinstance(value, str) and given.many:
        return _parts(given, value)
    return given.typed(value)


def _parts(given: Option, text: str) -> tuple[Any, ...]:
    """Split a text at the commas; an empty one has a part if the default has."""
    if not text and not given.default:
        return ()
    if given.of == "int":
        return parse_integers(given.option, text, like=_shown(given.default))
    return tuple(part.strip() for part in text.split(","))


def parse_names(text: str) -> tuple[str, ...]:
    """Parse names of columns between commas.

    >>> parse_names("user, item")
    ('user', 'item')
    """
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_integers(option: str, text: str, *, like: str) -> tuple[int, ...]:
    """Parse whole numbers between commas.

    Args:
        option: name of the option.
        text: value of the option.
        like: an example for the error message.

    Raises:
        InputError: if the text is anything else.

    >>> parse_integers("--mlp", "400,200", like="400,400,400")
    (400, 200)
    """
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise InputError(f"{option} {text!r} is not a list of whole numbers like {like}") from None
