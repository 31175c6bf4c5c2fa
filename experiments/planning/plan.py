"""Plan the runs of an experiment, as far as the size of the data allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from cowclip_merlin.experiments.definitions import NAMED_MULTIPLIERS, Experiment, ExperimentLine
from cowclip_merlin.experiments.planning.line_settings import make_run_settings
from cowclip_merlin.experiments.planning.planned_run import DataVariant, PlannedRun
from cowclip_merlin.experiments.planning.sizing import Sizing
from cowclip_merlin.experiments.results.tuned import TunedValues
from cowclip_merlin.loading import validation_rows

_USUAL_LAYERS: Mapping[str, Any] = MappingProxyType({"mlp": (400, 400, 400)})


def plan_runs(
    experiment: Experiment,
    sizing: Sizing,
    *,
    seeds: int,
    update: str = "exact",
    fraction: float = 1.0,
    tuned: TunedValues | None = None,
    validation_fraction: float = 0.0,
    validation_split: str = "random",
    layers: Mapping[str, Any] = _USUAL_LAYERS,
) -> list[PlannedRun]:
    """Return all runs of an experiment that its sizing allows, line by line.

    Args:
        experiment: an experiment of a kind that trains.
        sizing: batches and base rates.
        seeds: runs of each cell, with seeds 1 to `seeds`.
        update: default for lines without one; "dense" replaces "exact" if that is not possible.
        fraction: share of the rows to use.
        tuned: values that sweeps chose.
        validation_fraction: share of the training rows to score instead of the test rows.
        validation_split: which rows these are; "given": those of `prepare`, without a share.
        layers: attributes of `RunSettings` that describe the layers of all models.
    """
    held_out = {"validation_fraction": validation_fraction, "validation_split": validation_split}
    return [
        PlannedRun(
            label=line.label,
            multiplier=multiplier,
            settings=make_run_settings(
                experiment,
                line,
                sizing,
                multiplier,
                seed=seed,
                update=update,
                tuned=tuned or {},
                held_out=held_out,
                layers=layers,
            ),
            variant=DataVariant(
                fraction=fraction, keep_top=line.keep_top, min_count=line.min_count
            ),
        )
        for line in experiment.lines
        for multiplier in feasible_multipliers(line, sizing, validation_fraction)
        for seed in range(1, seeds + 1)
    ]


def feasible_multipliers(
    line: ExperimentLine, sizing: Sizing, validation_fraction: float = 0.0
) -> Iterator[int | str]:
    """Return the line's multipliers whose batch is not too large; ignore held-out rows."""
    rows = sizing.rows
    if validation_fraction:
        rows -= validation_rows(rows, validation_fraction)
    for multiplier in line.multipliers:
        within = multiplier in NAMED_MULTIPLIERS or multiplier <= sizing.max_multiplier
        if within and sizing.batch(multiplier) <= rows:
            yield multiplier


def describe_infeasible(
    experiment: Experiment, sizing: Sizing, validation_fraction: float = 0.0
) -> list[str]:
    """Return one text for each line with batches that are too large for the data."""
    texts = []
    for line in experiment.lines:
        feasible = set(feasible_multipliers(line, sizing, validation_fraction))
        left_out = [m for m in line.multipliers if m not in feasible]
        if left_out:
            batches = ", ".join(f"{sizing.factor(m)} times" for m in left_out)
            texts.append(
                f"{line.label} at {batches} the base batch: too large for this number of rows"
            )
    return texts
