"""Fields of settings that carry their help, limits and choices, and options made of them."""

from __future__ import annotations

import argparse
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache, cached_property
from inspect import cleandoc
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from cowclip_merlin import choices
from cowclip_merlin.addresses import path_of
from cowclip_merlin.checks import check_unique, is_finite, is_number, is_whole, one_of
from cowclip_merlin.errors import InputError

_LIMITS: Mapping[str, Callable[[float, float], bool]] = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}


@dataclass(frozen=True, kw_only=True)
class Option:
    """What is known of a field of settings, and how it appears on the command line.

    Attributes:
        help: help text in one line; "{choices}" stands for the choices.
        default: default of the field; `MISSING`: the option is required.
        shown: the default in the help text; None: as it is; "": no words.
        flag: name such as "--rounds", or "kind" for a positional argument; None: the field's name.
        metavar: name of the value in the help; None: chosen by type.
        kind: type of the value, if it is not that of the field. The parsed arguments then have
            None without the option, so that a command knows whether it is given.
        nargs: "+" or "*" for values separated by spaces; None for values separated by commas.
        choices: the allowed values, or a function that returns them. The parser lists and checks
            them, but with a metavar only the settings do.
        const: value of the option if only its name is given; None: it needs a value.
        convert: makes the value of the field from that of the option, which is text without `kind`.
        at_least: smallest value. All limits refuse numbers that are not finite, and parts of
            whole numbers.
        above: largest number that is too small.
        at_most: largest value.
        below: smallest number that is too large.
        unique: whether all values must differ.
        negatable: for a switch: whether there is also an option --no-...
        output: whether the value is a file to write.
        name: name of the field.
        annotation: type of the field, as it is written.
    """

    help: str
    default: Any = MISSING
    shown: str | None = None
    flag: str | None = None
    metavar: str | None = None
    kind: Callable[[str], Any] | None = None
    nargs: str | None = None
    choices: Callable[[], Iterable[str]] | Iterable[str] | None = None
    const: str | None = None
    convert: Callable[[Any], Any] | None = None
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    unique: bool = False
    negatable: bool = False
    output: bool = False
    name: str = ""
    annotation: str = ""

    @property
    def option(self) -> str:
        """The option of the command line, or the name of a positional argument."""
        return self.flag or "--" + self.name.replace("_", "-")

    @property
    def positional(self) -> bool:
        """Whether it is a positional argument."""
        return not self.option.startswith("-")

    @cached_property
    def dest(self) -> str:
        """The option as a setting: what errors name, and where the parser stores its value."""
        return self.option.removeprefix("--").replace("-", "_")

    @property
    def known(self) -> tuple[str, ...]:
        """The choices; empty if there are none."""
        return tuple((self.choices() if callable(self.choices) else self.choices) or ())

    @cached_property
    def many(self) -> bool:
        """Whether the field holds several values."""
        return self.annotation.startswith(("tuple[", "Sequence["))

    @cached_property
    def of(self) -> str:
        """Name of the type of a value."""
        return re.split(r"\W+", self.annotation)[1 if self.many else 0]

    @property
    def words(self) -> str:
        """The help text, with the choices."""
        return self.help.replace("{choices}", ", ".join(self.known))

    @property
    def about(self) -> str:
        """The help text, with a default that stands for None."""
        stands = self.default is None and self.shown
        return f"{self.words} (default: {self.shown})" if stands else self.words

    @cached_property
    def limits(self) -> dict[str, float]:
        """The limits that are set: name -> number."""
        return {name: x for name in _LIMITS if (x := getattr(self, name)) is not None}

    def typed(self, value: Any) -> Any:
        """Return a path or an address for the text of one, and a tuple for any sequence.

        A whole number of NumPy becomes one of Python, which JSON can hold.
        """
        if self.of == "int" and not self.many and is_whole(value):
            return int(value)
        if self.of in ("Path", "FilePath"):
            return tuple(map(path_of, value)) if self.many else path_of(value)
        return tuple(value) if self.many else value

    def check(self, value: float) -> None:
        """Refuse what is no number, not within the limits, or not whole if it must be.

        Raises:
            InputError: if it is not.
        """
        if self.of not in ("int", "float"):
            return
        if not is_number(value):
            kind = "a whole number" if self.of == "int" else "a number"
            raise InputError(f"{self.dest} is {value!r}; it must be {kind}")
        finite = is_finite(value) or not self.limits
        whole = self.of != "int" or is_whole(value)
        within = all(_LIMITS[name](value, limit) for name, limit in self.limits.items())
        if not (finite and whole and within):
            words = [f"{name.replace('_', ' ')} {limit}" for name, limit in self.limits.items()]
            words += [] if finite else ["finite"]
            words += [] if whole else ["a whole number"]
            raise InputError(f"{self.dest} is {value}; it must be {' and '.join(words)}")


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    default_factory: Callable[[], Any] | None = None,
    **details: Any,
) -> Any:
    """Define a field of settings, which may also be an option on the command line.

    The module of the class needs `from __future__ import annotations`: its types are read as text.

    Args:
        default: default of the field: a number, a name, a path, or a tuple of numbers or names.
        help: help text in one line.
        default_factory: makes the default instead.
        details: other attributes of `Option`.

    >>> @dataclass(frozen=True)
    ... class Example(Settings):
    ...     mlp: tuple[int, ...] = option((8, 4), "widths", at_least=1)
    >>> Example(mlp=(9, 0))
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: mlp is 0; it must be at least 1
    """
    metadata = {"option": Option(help=help, default=default, **details)}
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def option_of(settings: type, name: str, **changes: Any) -> Any:
    """Define a field like one of other settings.

    Args:
        settings: class with the field.
        name: of the field.
        changes: attributes of its `Option` that differ.
    """
    given = replace(options_of(settings)[name], name="", annotation="", **changes)
    return field(default=given.default, metadata={"option": given})


def device_option() -> Any:
    """Define the field of the device to compute on."""
    shown = "auto, a GPU if there is one"
    return option("auto", "where to compute", shown=shown, choices=choices.DEVICES)


class Settings:
    """Base of settings: documents the fields that `option` defines, and checks their values."""

    def __init_subclass__(cls) -> None:
        """Add the attributes to the docstring."""
        made = {k: v.metadata for k, v in vars(cls).items() if isinstance(v, Field)}
        texts = {name: data["option"].about for name, data in made.items() if "option" in data}
        lines = [f"    {name}: {_as_setting(text)}" for name, text in texts.items()]
        cls.__doc__ = "\n".join([cleandoc(cls.__doc__ or ""), "", "Attributes:", *lines])

    def __post_init__(self) -> None:
        """Check each value by itself; a path may be given as text, a tuple as any sequence.

        Raises:
            InputError: if a value is not among its choices, out of range or given twice.
        """
        for name, given in options_of(type(self)).items():
            value = getattr(self, name)
            if value is not None or "None" not in given.annotation:
                object.__setattr__(self, name, given.typed(value))
                _check(given, getattr(self, name))


def _as_setting(text: str) -> str:
    """Write the options of a help text as settings.

    >>> _as_setting("rows to reserve; else that of --max-rows")
    'rows to reserve; else that of `max_rows`'
    """
    return re.sub(r"--([a-z-]+)", lambda found: f"`{found[1].replace('-', '_')}`", text)


def _check(given: Option, value: Any) -> None:
    values = value if given.many else (value,)
    for each in values:
        if given.choices is not None:
            one_of(given.dest, each, given.known)
        given.check(each)
    if given.unique:
        check_unique({given.dest: values})


@cache
def options_of(settings: type) -> Mapping[str, Option]:
    """Return the fields of a class that `option` has defined, by name."""
    found = {
        each.name: replace(each.metadata["option"], name=each.name, annotation=str(each.type))
        for each in fields(settings)
        if "option" in each.metadata
    }
    return MappingProxyType(found)


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


def words_of(settings: type, values: Mapping[str, Any]) -> list[str]:
    """Return the words of the command line that give values to fields.

    Args:
        settings: class with the fields.
        values: field -> its value.

    >>> @dataclass(frozen=True)
    ... class Example(Settings):
    ...     mlp: tuple[int, ...] = option((8, 4), "widths")
    ...     batch_norm: bool = option(False, "whether to normalize")
    >>> words_of(Example, {"mlp": (9, 8), "batch_norm": True})
    ['--mlp', '9,8', '--batch-norm']
    """
    known, words = options_of(settings), []
    for name, value in values.items():
        given = known[name]
        if given.of == "bool":
            off = [f"--no-{given.option.removeprefix('--')}"] if given.negatable else []
            words += [given.option] if value else off
        elif given.nargs:
            words += [given.option, *map(str, value)]
        else:
            words += [given.option, ",".join(map(str, value)) if given.many else str(value)]
    return words


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
