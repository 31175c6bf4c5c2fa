"""Check single values of an experiment's file; every error names the file and the key."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.checks import is_finite
from cowclip_merlin.errors import InputError
from cowclip_merlin.training.run_settings import OVERRIDES
from cowclip_merlin.types import Json, JsonObject

if TYPE_CHECKING:
    from cowclip_merlin.experiments.definitions.experiment import ExperimentLine
    from cowclip_merlin.experiments.definitions.log_experiment import CollisionLine, ReplayLine


def check_mapping(
    path: Path,
    where: str,
    value: Json,
    dataclass: type,
    *,
    required: Sequence[str],
    without: Sequence[str] = (),
) -> JsonObject:
    """Return the values of a dataclass's attributes; a key without a value counts as absent.

    Args:
        path: the experiment's file.
        where: place in the file, such as "lines[1]."; empty for the whole file.
        value: from the file.
        dataclass: has an annotation for each key.
        required: keys that must be there.
        without: attributes that are no keys.

    Raises:
        InputError: if it is no mapping, or a key or value is unknown, missing or of a wrong type.
    """
    if not isinstance(value, dict):
        raise InputError(f"{path}: {where.rstrip('.')} is {value!r}; it must be a mapping")
    given = {key: each for key, each in value.items() if each is not None}
    annotations = {f.name: str(f.type) for f in fields(dataclass) if f.name not in without}
    for key in given:
        if key not in annotations:
            raise InputError(f"{path}: unknown {where}{key}; use {', '.join(annotations)}")
    for key in required:
        if key not in given:
            raise InputError(f"{path}: {where}{key} is missing; give it")
    for name, each in given.items():
        fits, words = _FIELD_CHECKS[annotations[name]]
        if not fits(each):
            raise InputError(f"{path}: {where}{name} is {each!r:.60}; {words}")
    return given


def check_one_of(path: Path, name: str, value: Json, known: Collection[str]) -> None:
    """Reject a value that is not among the known ones."""
    if value not in list(known):
        raise InputError(f"{path}: {name} is {value!r}; choose one of {', '.join(known)}")


def check_labels(path: Path, lines: Sequence[ExperimentLine | ReplayLine | CollisionLine]) -> None:
    """Reject duplicate labels, because tables and results identify lines by their labels."""
    first: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if first.setdefault(line.label, number) != number:
            raise InputError(
                f"{path}: lines[{number}].label is {line.label!r}, the same as "
                f"lines[{first[line.label]}].label; give each line its own label"
            )


def file_safe_name(path: Path) -> str:
    """Return the name of an experiment's file with safe characters: its files are named so.

    >>> file_safe_name(Path("my test.yaml"))
    'my_test'
    """
    return re.sub(r"[^\w-]", "_", path.stem, flags=re.ASCII)


def _texts(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _count(value: Json) -> bool:
    return type(value) is int and value >= 1  # a bool is an int, too


def _finite(value: Json) -> bool:
    return type(value) in (int, float) and is_finite(value)


def _mapping_to(fits: Callable[[Json], bool]) -> Callable[[Json], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


_TEXT = (lambda value: isinstance(value, str) and bool(value), "give a text, in quotes")
_LIST = (lambda value: isinstance(value, list), "it must be a list")
_COUNT = (_count, "give a whole number from 1 on")
_FIELD_CHECKS: Mapping[str, tuple[Callable[[Json], bool], str]] = {
    "str": _TEXT,
    "str | None": _TEXT,
    "int | None": _COUNT,
    "int": _COUNT,
    "float": (_finite, "give a number"),
    "float | None": (_finite, "give a number"),
    "bool": (lambda value: isinstance(value, bool), "give true or false"),
    "tuple[ExperimentLine, ...]": _LIST,
    "tuple[ReplayLine | CollisionLine, ...]": _LIST,
    "tuple[int | str, ...]": (_LIST[0], "give a list like [1, 8]"),
    "tuple[str, ...]": (_texts, "give a list of texts"),
    "tuple[str, int | str] | None": (
        lambda value: isinstance(value, list) and len(value) == 2,
        "give a label and a multiplier, like [no scaling, 1]",
    ),
    "Mapping[int | str, float]": (
        _mapping_to(_finite),
        "give numbers by multiplier, like {1: 80.76}",
    ),
    "Mapping[int | str, str]": (
        _mapping_to(lambda value: isinstance(value, str)),
        "give texts by multiplier, like {1: a misprint}",
    ),
    "Mapping[str, float]": (
        lambda value: isinstance(value, dict),
        "give numbers by name, like {l2: 1e-5}",
    ),
    "Mapping[str, tuple[float, ...]]": (
        lambda value: isinstance(value, dict),
        "give lists of numbers by name, like {r: [1, 0.1]}",
    ),
}


def check_rates(path: Path, where: str, values: Mapping[str, Json]) -> dict[str, float]:
    """Convert base values to numbers, by name; YAML reads 1e-4, without a point, as text."""
    return {name: _rate(path, where, name, value) for name, value in values.items()}


def _rate(path: Path, where: str, name: str, value: Json) -> float:
    check_one_of(path, f"a name in {where}", name, OVERRIDES)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"{path}: {where}.{name} is {value!r}; give a number from 0 on")
    return number
