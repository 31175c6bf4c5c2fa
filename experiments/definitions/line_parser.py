"""Parse one line of an experiment from its YAML mapping."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cowclip_merlin import choices
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions.checks import (
    check_mapping,
    check_one_of,
    check_rates,
)
from cowclip_merlin.experiments.definitions.experiment import (
    NAMED_MULTIPLIERS,
    OF_RUN,
    ExperimentLine,
)
from cowclip_merlin.scaling import RULES
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Json


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
