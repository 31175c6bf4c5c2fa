"""Parse an experiment from a YAML mapping, and reject values and settings that cannot run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cowclip_merlin import choices
from cowclip_merlin.checks import is_finite
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions.experiment import (
    KINDS,
    LOG_KINDS,
    MEASURES,
    NAMED_MULTIPLIERS,
    NEVER,
    OF_RUN,
    PUBLISHED,
    RUN_KINDS,
    CollisionLine,
    Experiment,
    ExperimentLine,
    LogExperiment,
    ReplayLine,
)
from cowclip_merlin.online.events.values import parse_duration
from cowclip_merlin.scaling import PRESETS, RULES
from cowclip_merlin.tables.layout import MOST_ADMIT
from cowclip_merlin.training.run_settings import OVERRIDES, RunSettings
from cowclip_merlin.types import Json, JsonObject


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


def _known_values() -> Mapping[str, Collection[str]]:
    return {
        "model": choices.MODELS,
        "rule": RULES,
        "optimizer": choices.OPTIMIZERS,
        "lr_schedule": choices.LR_SCHEDULES,
        "activation": choices.ACTIVATIONS,
        "clip": choices.CLIPS,
        "update": choices.UPDATES,
        "dense_rule": ("linear",),
    }


def parse_line(path: Path, number: int, value: Json) -> ExperimentLine:
    """Parse line `number` of an experiment, counted from 1.

    Raises:
        InputError: if a key or value is unknown, missing or of the wrong type.
    """
    where = f"lines[{number}]."
    required = ("label", "multipliers")
    given = check_mapping(path, where, value, ExperimentLine, required=required)
    _check_multipliers(path, where, given["multipliers"])
    _check_cells(path, where, given)
    for name, known in _known_values().items():
        if name in given:
            check_one_of(path, where + name, given[name], known)
    _check_run(path, where, {name: given[name] for name in OF_RUN if name in given})
    rates = {n: given[n] for n in ("overrides", "factors") if n in given}
    numbers = {n: check_rates(path, where + n, values) for n, values in rates.items()}
    return ExperimentLine(**{**given, **numbers, "multipliers": tuple(given["multipliers"])})


def _check_multipliers(path: Path, where: str, multipliers: Sequence[Json]) -> None:
    """Reject multipliers that are neither numbers nor names, and duplicates."""
    if not multipliers:
        raise InputError(f"{path}: {where}multipliers is []; give a list like [1, 8]")
    for index, multiplier in enumerate(multipliers):
        number = type(multiplier) is int and multiplier >= 1  # a bool is an int, too
        if not number and multiplier not in list(NAMED_MULTIPLIERS):
            raise InputError(
                f"{path}: {where}multipliers holds {multiplier!r}; use whole numbers from 1 on, "
                f"or {' or '.join(NAMED_MULTIPLIERS)}"
            )
        if multiplier in multipliers[:index]:
            raise InputError(f"{path}: {where}multipliers holds {multiplier!r} twice; give it once")


def _check_run(path: Path, where: str, given: Mapping[str, Any]) -> None:
    """Reject what no run has; whether its rows fit a schedule, its plan says."""
    try:
        RunSettings(model="deepfm", batch_size=1, validation_fraction=0.1, **given)
    except InputError as error:
        raise InputError(f"{path}: {where}{error}") from None


def _check_cells(path: Path, where: str, given: Mapping[str, Json]) -> None:
    """Reject published numbers and notes for multipliers that the line does not have."""
    for name in ("published", "notes"):
        for multiplier in given.get(name, ()):
            if multiplier not in given["multipliers"]:
                raise InputError(
                    f"{path}: {where}{name} is for {multiplier!r}, which is not among the "
                    "multipliers; add it there, or remove it here"
                )


# These kinds use the paper's sizes for every data set.
_PAPER_SIZE_KINDS = ("hyperparameters", "parameters")


def parse_experiment(path: Path, value: Mapping[str, Json]) -> Experiment:
    """Parse an experiment; a key without a value counts as absent.

    Raises:
        InputError: if a key or value is unknown, missing or of the wrong type.
    """
    required, without = ("title", "claim"), ("name", "source")
    given = check_mapping(path, "", value, Experiment, required=required, without=without)
    _check_choices(path, given)
    lines = _lines(path, given.pop("lines", ()))
    lists = {name: tuple(given[name]) for name in ("notes", "reference") if name in given}
    experiment = Experiment(name=file_safe_name(path), lines=lines, **given | lists)
    if experiment.kind in (*RUN_KINDS, "gradients") and not lines:
        raise InputError(f"{path}: lines is missing; {experiment.kind} needs at least one")
    if experiment.kind == "sweep":
        experiment = _sweep(path, experiment)
    else:
        _refuse_plateaus(path, lines)
    _check_reference(path, experiment)
    _check_paper_sizes(path, experiment)
    return experiment


def _lines(path: Path, values: Sequence[Json]) -> tuple[ExperimentLine, ...]:
    lines = tuple(parse_line(path, number, value) for number, value in enumerate(values, 1))
    check_labels(path, lines)
    return lines


def _check_choices(path: Path, given: Mapping[str, Json]) -> None:
    for name, known in {"kind": KINDS, "measure": MEASURES, "preset": PRESETS}.items():
        if name in given:
            check_one_of(path, name, given[name], known)


def _check_reference(path: Path, experiment: Experiment) -> None:
    if experiment.reference is None:
        return
    cells = [(line.label, m) for line in experiment.lines for m in line.multipliers]
    if experiment.reference not in cells:
        raise InputError(
            f"{path}: reference is {list(experiment.reference)!r}, which is not a cell; "
            "give a label and one of its multipliers"
        )


def _check_paper_sizes(path: Path, experiment: Experiment) -> None:
    """Reject "largest" and "beyond" if no data set defines the largest batch."""
    if experiment.kind not in _PAPER_SIZE_KINDS:
        return
    for number, line in enumerate(experiment.lines, 1):
        for multiplier in line.multipliers:
            if multiplier in NAMED_MULTIPLIERS:
                raise InputError(
                    f"{path}: lines[{number}].multipliers holds {multiplier!r}, which "
                    f"{experiment.kind} cannot take; use whole numbers"
                )


def _refuse_plateaus(path: Path, lines: Sequence[ExperimentLine]) -> None:
    for number, line in enumerate(lines, 1):
        if line.lr_schedule == "plateau":
            raise InputError(
                f"{path}: lines[{number}].lr_schedule is 'plateau', which needs validation rows, "
                "but only a sweep scores some; use another one"
            )


def _sweep(path: Path, experiment: Experiment) -> Experiment:
    """Return the sweep with the values of its grid as numbers."""
    if len(experiment.lines) != 1:
        raise InputError(f"{path}: a sweep needs one line, not {len(experiment.lines)}; give one")
    if not experiment.grid and not experiment.grid_factors:
        raise InputError(f"{path}: grid and grid_factors are missing; give one of them")
    grids = {n: _grid(path, n, getattr(experiment, n)) for n in ("grid", "grid_factors")}
    for name in grids["grid"]:
        if name in grids["grid_factors"]:
            raise InputError(f"{path}: {name} is in grid and in grid_factors; remove one")
    return replace(experiment, **grids)


def _grid(path: Path, where: str, grid: Mapping[str, Json]) -> dict[str, tuple[float, ...]]:
    found = {}
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{path}: {where}.{name} is {values!r}; give a list of numbers")
        found[name] = tuple(check_rates(path, where, {name: value})[name] for value in values)
        if len(set(found[name])) < len(values):
            raise InputError(f"{path}: {where}.{name} is {values!r}; give each number once")
    return found


def parse_log_experiment(path: Path, value: Mapping[str, Json]) -> LogExperiment:
    """Parse an experiment on a log; a key without a value counts as absent.

    Raises:
        InputError: if a key or value is unknown, missing or of the wrong type.
    """
    required, without = ("title", "claim", "kind", "lines", "reference"), ("name", "source")
    given = check_mapping(path, "", value, LogExperiment, required=required, without=without)
    check_one_of(path, "kind", given["kind"], LOG_KINDS)
    lines = tuple(_line(path, n, given["kind"], x) for n, x in enumerate(given["lines"], 1))
    check_labels(path, lines)
    check_one_of(path, "reference", given["reference"], [line.label for line in lines])
    changed = {"lines": lines, "notes": tuple(given.get("notes", ()))}
    return LogExperiment(name=file_safe_name(path), **given | changed)


def _line(path: Path, number: int, kind: str, value: Json) -> ReplayLine | CollisionLine:
    """Parse line `number`, counted from 1, as the kind's class."""
    where, line_type = f"lines[{number}].", LOG_KINDS[kind]
    given = check_mapping(path, where, value, line_type, required=_REQUIRED[line_type])
    _CHECKS[line_type](path, where, given)
    columns = {"columns": tuple(given["columns"])} if "columns" in given else {}
    return line_type(**given | columns)


def _check_replay_line(path: Path, where: str, given: Mapping[str, Json]) -> None:
    for name in ("sync", "ttl"):
        if given.get(name, NEVER) != NEVER:
            try:
                parse_duration(given[name], f"{where}{name}")
            except InputError as error:
                raise InputError(f"{path}: {error}, or never") from None
    if given.get("admit", 1) > MOST_ADMIT:
        raise InputError(f"{path}: {where}admit is {given['admit']}; give 1 to {MOST_ADMIT}")
    for name, number in given.get("published", {}).items():
        check_one_of(path, f"a name in {where}published", name, PUBLISHED)
        if type(number) not in (int, float):  # a bool is an int, too
            raise InputError(f"{path}: {where}published.{name} is {number!r}; give a number")


def _check_collision_line(path: Path, where: str, given: Mapping[str, Json]) -> None:
    if given["load"] < 0:
        raise InputError(f"{path}: {where}load is {given['load']}; give a number from 0 on")


_REQUIRED: Mapping[type, tuple[str, ...]] = {
    ReplayLine: ("label", "sync"),
    CollisionLine: ("label", "load"),
}
_CHECKS: Mapping[type, Callable[[Path, str, Mapping[str, Json]], None]] = {
    ReplayLine: _check_replay_line,
    CollisionLine: _check_collision_line,
}
