"""Experiments from YAML files, of this package and of users; every mistake is one line."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from cowclip_merlin import addresses
from cowclip_merlin.checks import is_finite
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import (
    KINDS,
    LOG_KINDS,
    Experiment,
    ExperimentLine,
    LogExperiment,
)
from cowclip_merlin.settings import options_of
from cowclip_merlin.system.yaml_file import read_yaml
from cowclip_merlin.training.run_settings import OVERRIDES
from cowclip_merlin.types import Json, JsonObject

Test = Callable[[Json], bool]


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and value != ""


def _is_whole(value: Json) -> bool:
    return type(value) is int  # a bool is an int, too


def _is_number(value: Json) -> bool:
    return type(value) in (int, float) and is_finite(value)


def _list_of(fits: Test = lambda _: True) -> Test:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _by_name(fits: Test = lambda _: True) -> Test:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _is_cell(value: Json) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


_TYPES: Mapping[str, tuple[Test, str]] = {
    "str": (_is_text, "give a text, in quotes"),
    "int": (_is_whole, "give a whole number"),
    "float": (_is_number, "give a number"),
    "bool": (lambda value: isinstance(value, bool), "give true or false"),
    "tuple[str | int, ...]": (_list_of(), "give a list like [1, 8]"),
    "tuple[str, ...]": (_list_of(_is_text), "give a list of texts"),
    "tuple[int, ...]": (_list_of(_is_whole), "give a list of whole numbers, like [400, 400]"),
    "tuple[str, int | str]": (_is_cell, "give a label and a multiplier, like [no scaling, 1]"),
    "tuple[ExperimentLine, ...]": (_list_of(), "it must be a list"),
    "tuple[ReplayLine | CollisionLine, ...]": (_list_of(), "it must be a list"),
    "Mapping[int | str, float]": (
        _by_name(_is_number),
        "give numbers by multiplier, like {1: 80.76}",
    ),
    "Mapping[int | str, str]": (
        _by_name(_is_text),
        "give texts by multiplier, like {1: a misprint}",
    ),
    "Mapping[str, int]": (
        _by_name(_is_whole),
        "give whole numbers by kind of data, like {criteo: 1024}",
    ),
    "Mapping[str, float]": (_by_name(), "give numbers by name, like {l2: 1e-5}"),
    "Mapping[str, tuple[float, ...]]": (
        _by_name(),
        "give lists of numbers by name, like {r: [1, 0.1]}",
    ),
}
"""Type of an attribute -> whether a value has it, and what to give. Rates by name are checked one
by one."""


def _checked(
    path: Path, where: str, value: Json, of: type, *, without: Sequence[str] = ()
) -> JsonObject:
    """Return the values of a class; a key without a value counts as absent.

    Raises:
        InputError: if it is no mapping, or a key or value is unknown, missing or of a wrong type.
    """
    if not isinstance(value, dict):
        raise InputError(f"{path}: {where.rstrip('.')} is {value!r}; it must be a mapping")
    given = {key: each for key, each in value.items() if each is not None}
    known = {each.name: each for each in fields(of) if each.name not in without}
    for key in given:
        if key not in known:
            raise InputError(f"{path}: unknown {where}{key}; use {', '.join(known)}")
    for key, each in known.items():
        if key not in given and each.default is each.default_factory is MISSING:
            raise InputError(f"{path}: {where}{key} is missing; give it")
    options = options_of(of)
    for name, each in given.items():
        fits, words = _TYPES[str(known[name].type).removesuffix(" | None")]
        if not fits(each):
            raise InputError(f"{path}: {where}{name} is {each!r:.60}; {words}")
        if name in options and options[name].choices is not None:
            check_one_of(path, where + name, each, options[name].known)
    return given


def check_one_of(path: Path, name: str, value: Json, known: Collection[str]) -> None:
    """Refuse a value that is not among the known ones."""
    if value not in list(known):
        raise InputError(f"{path}: {name} is {value!r}; choose one of {', '.join(known)}")


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


def parse_experiment(path: Path, value: Mapping[str, Json]) -> Experiment | LogExperiment:
    """Parse an experiment; a key without a value counts as absent.

    Raises:
        InputError: if a key or value is unknown, missing or of the wrong type, or cannot run.
    """
    kind = KINDS[0] if value.get("kind") is None else value["kind"]
    check_one_of(path, "kind", kind, (*KINDS, *LOG_KINDS))
    of, made = (
        LOG_KINDS.get(kind, ExperimentLine),
        LogExperiment if kind in LOG_KINDS else Experiment,
    )
    given = _checked(path, "", value, made, without=("name", "source"))
    parts = enumerate(given.get("lines", ()), 1)
    given["lines"] = tuple(_line(path, f"lines[{number}].", part, of) for number, part in parts)
    given |= {n: _grid(path, n, given[n]) for n in ("grid", "grid_factors") if n in given}
    file_safe = re.sub(r"[^\w-]", "_", path.stem, flags=re.ASCII)  # its files are named so
    experiment = made(name=file_safe, **given)
    try:
        experiment.check()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return experiment


def _line(path: Path, where: str, value: Json, of: type) -> Any:
    given = _checked(path, where, value, of)
    for name in ("overrides", "factors"):
        if name in given:
            given[name] = check_rates(path, where + name, given[name])
    try:
        return of(**given)
    except InputError as error:
        raise InputError(f"{path}: {where}{error}") from None


def _grid(path: Path, where: str, grid: Mapping[str, Json]) -> dict[str, tuple[float, ...]]:
    found = {}
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{path}: {where}.{name} is {values!r}; give a list of numbers")
        found[name] = tuple(_rate(path, where, name, value) for value in values)
        if len(set(found[name])) < len(values):
            raise InputError(f"{path}: {where}.{name} is {values!r}; give each number once")
    return found


FILES = ("cowclip", "bars", "monolith", "sweeps")


@cache
def _of_package() -> Mapping[str, str]:
    """Return the text of each experiment of this package by name; to parse all takes 0.2 s."""
    folder = Path(__file__).parent
    texts = [(folder / f"{name}.yaml").read_text(encoding="utf-8") for name in FILES]
    _, *parts = re.split(r"^(\w+):\n", "\n".join(texts), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def natural_order(name: str) -> tuple[object, ...]:
    """Return a sort key: the paper's tables and figures first, by their numbers.

    >>> sorted(["updates", "table10", "table2", "figure3"], key=natural_order)
    ['table2', 'table10', 'figure3', 'updates']
    """
    group = [name.startswith("table"), name.startswith("figure"), True].index(True)
    return group, *addresses.natural_order(name)


def experiment_names() -> list[str]:
    """Return the names of this package's experiments, tables first.

    >>> "table2" in experiment_names()
    True
    """
    return sorted(_of_package(), key=natural_order)


def load_experiment(name: str) -> Experiment | LogExperiment:
    """Load one experiment of this package by its name, or from the user's YAML file.

    Raises:
        InputError: if the experiment or file does not exist, or has settings that cannot run.

    >>> load_experiment("table2").corner
    'rule'
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise InputError(f"{path}: no such file; check the path")
        if path.stem in _of_package():
            raise InputError(
                f"{path}: {path.stem} is an experiment of this package; rename the file"
            )
        return replace(parse_experiment(path, read_yaml(path, first_key="title")), source=path.name)
    if name not in _of_package():
        known = experiment_names()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"no experiment {name!r}; {hint}use one of {', '.join(known)}")
    path, text = Path(name), _of_package()[name]
    return parse_experiment(path, read_yaml(path, first_key="title", text=text))


def load_experiments(names: Sequence[str], *, sweeps: bool) -> list[Experiment | LogExperiment]:
    """Load experiments by name; `sweeps`: accept only sweeps, or only other experiments.

    Raises:
        InputError: if an experiment does not exist, or the other command runs it, or two have the
            same name.
    """
    found = [load_experiment(name) for name in names]
    for experiment in found:
        if [each.name for each in found].count(experiment.name) > 1:
            raise InputError(
                f"{experiment.cli_name}: two experiments write the files {experiment.name}; give "
                "it once, or rename a file"
            )
        if (experiment.kind == "sweep") != sweeps:
            verb = "sweep" if experiment.kind == "sweep" else "experiment"
            raise InputError(f"{experiment.name} is run by `cowclip {verb} {experiment.cli_name}`")
    return found
