"""Parse an `Experiment` from a YAML mapping; reject settings that cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions.checks import (
    check_labels,
    check_mapping,
    check_one_of,
    check_rates,
    file_safe_name,
)
from cowclip_merlin.experiments.definitions.experiment import (
    KINDS,
    MEASURES,
    NAMED_MULTIPLIERS,
    RUN_KINDS,
    Experiment,
    ExperimentLine,
)
from cowclip_merlin.experiments.definitions.line_parser import parse_line
from cowclip_merlin.scaling import PRESETS
from cowclip_merlin.types import Json

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
