"""Check the values of commands, settings and benchmarks, with one-line errors."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches

from cowclip_merlin.errors import InputError

BALANCED = "balanced"
"""Class weights that give both labels the same sum of weights."""

ClassWeights = tuple[float, float]
"""Weights of the labels 0 and 1 in the loss."""


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, also of NumPy; 1.0 and True are not.

    >>> is_whole(3), is_whole(3.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a number, also of NumPy; True is not.

    >>> is_number(0.5), is_number(True), is_number("1")
    (True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_whole(values: Mapping[str, object | Sequence[object]]) -> None:
    """Refuse values that are not whole numbers.

    Args:
        values: option name -> its number or numbers; None is not given.

    Raises:
        InputError: if a value is something else, such as 1.0 or True.

    >>> check_whole({"mlp": (8, 4.0)})
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: mlp is 4.0; give a whole number
    """
    for option, given in values.items():
        for value in given if isinstance(given, list | tuple) else (given,):
            if value is not None and not is_whole(value):
                raise InputError(f"{option} is {value!r}; give a whole number")


def check_at_least_one(counts: Mapping[str, int | Sequence[int]]) -> None:
    """Refuse counts that are not whole numbers of 1 or more.

    Args:
        counts: option name -> its number or numbers.

    Raises:
        InputError: if a count is 0, negative or not whole.

    >>> check_at_least_one({"--rounds": 1, "--mlp": (8, 0)})
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --mlp is 0; give 1 or more
    """
    check_whole(counts)
    for option, given in counts.items():
        for count in given if isinstance(given, list | tuple) else (given,):
            if count < 1:
                raise InputError(f"{option} is {count}; give 1 or more")


def is_finite(value: float) -> bool:
    """Whether a number is finite as a float; a large int may not be.

    >>> is_finite(1), is_finite(float("nan")), is_finite(10**400)
    (True, False, False)
    """
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def check_not_negative(values: Mapping[str, float]) -> None:
    """Refuse values that are not finite numbers >= 0.

    Args:
        values: setting name -> its value.

    Raises:
        InputError: if a value is negative or not finite.

    >>> check_not_negative({"r": 1.0, "zeta": -1.0})
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: zeta is -1.0; it must be a finite number >= 0
    """
    for name, value in values.items():
        if not (is_finite(value) and value >= 0):
            raise InputError(f"{name} is {value}; it must be a finite number >= 0")


def check_positive(values: Mapping[str, float]) -> None:
    """Refuse values that are not finite numbers > 0.

    Args:
        values: option name -> its number.

    Raises:
        InputError: if a value is 0, negative or not finite.

    >>> check_positive({"--seconds": float("nan")})
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --seconds is nan; give a number above 0
    """
    for option, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"{option} is {value:g}; give a number above 0")


def check_unique(lists: Mapping[str, Sequence[Hashable]]) -> None:
    """Refuse duplicate values.

    Args:
        lists: option name -> its values.

    Raises:
        InputError: if an option has the same value twice.

    >>> check_unique({"--batch-sizes": (8, 16, 8)})
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --batch-sizes 8,16,8: give every value once
    """
    for option, values in lists.items():
        if len(set(values)) < len(values):
            raise InputError(f"{option} {','.join(map(str, values))}: give every value once")


def check_choices(option: str, values: Sequence[str], choices: Iterable[str]) -> None:
    """Refuse names that are not among the choices.

    Raises:
        InputError: if a name is not among the choices.

    >>> check_choices("--updates", ("exact", "eager"), ("dense", "exact"))
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --updates: unknown 'eager'; choose one of dense, exact
    """
    for value in values:
        if value not in choices:
            raise InputError(f"{option}: unknown {value!r}; choose one of {', '.join(choices)}")


def near(value: object, choices: Iterable[str]) -> str:
    """Return words about the choice that a value was perhaps meant to be; "" without one.

    >>> near("trian", ("prepare", "train")), near("x", ("prepare", "train"))
    ('; did you mean train?', '')
    """
    found = get_close_matches(str(value), list(choices), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def one_of(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a setting that is not among its choices.

    Raises:
        InputError: if the value is not among the choices.

    >>> one_of("update", "eager", ("dense", "exact"))
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: unknown update 'eager'; choose one of dense, exact
    """
    known = tuple(choices)  # looking up an unhashable value in a mapping would fail
    if value not in known:
        words = f"unknown {name} {value!r}; choose one of {', '.join(known)}"
        raise InputError(words + near(value, known))


def parse_class_weights(text: str) -> ClassWeights | None:
    """Parse the weights of the labels; a label that is not named has the weight 1.

    Args:
        text: "balanced", or a weight for each label.

    Returns:
        The weights; None if they follow from the rows.

    Raises:
        InputError: if the text is anything else, or a weight is not a finite number of 0 or more,
            or both are 0.

    >>> parse_class_weights("0:1,1:10"), parse_class_weights("1:2.5")
    ((1.0, 10.0), (1.0, 2.5))
    """
    if text == BALANCED:
        return None
    found: dict[str, float] = {}
    for part in text.split(","):
        label, _, weight = (each.strip() for each in part.partition(":"))
        if label not in ("0", "1") or label in found or not _is_weight(weight):
            raise InputError(
                f"`class_weight` is {text!r}; give {BALANCED}, or a number of 0 or more for each "
                "label, such as 0:1,1:10"
            )
        found[label] = float(weight)
    weights = found.get("0", 1.0), found.get("1", 1.0)
    if weights == (0, 0):
        raise InputError(f"`class_weight` is {text!r}; a weight must be above 0")
    return weights


def _is_weight(text: str) -> bool:
    try:
        number = float(text)
    except ValueError:
        return False
    return is_finite(number) and number >= 0


def parse_files(option: str, text: str) -> dict[str, str]:
    """Parse files that are given for columns.

    Args:
        option: name of the option.
        text: COLUMN=FILE, several separated by commas.

    Raises:
        InputError: if the text is anything else, or a column is given twice.

    >>> parse_files("`files`", "item=a.parquet, user=b.parquet")
    {'item': 'a.parquet', 'user': 'b.parquet'}
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, file = (each.strip() for each in part.partition("="))
        if not name or not file or name in found:
            raise InputError(f"{option} is {text!r}; give each column one file, as item=FILE")
        found[name] = file
    return found
