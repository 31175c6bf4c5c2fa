"""Plan the runs of a sweep: a grid of base values, then the neighbors of its best points."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cowclip_merlin.experiments.definitions import Experiment
from cowclip_merlin.experiments.planning.grid import (
    Point,
    expand_sweep,
    grid_points,
    neighbors,
    point_label,
)
from cowclip_merlin.experiments.planning.plan import plan_runs
from cowclip_merlin.experiments.planning.planned_run import PlannedRun, RunResults
from cowclip_merlin.experiments.planning.sizing import Sizing
from cowclip_merlin.experiments.results.tuned import TunedValues
from cowclip_merlin.training import RunSettings

VALIDATION_FRACTION = 0.1
BEAM_WIDTH = 2
"""Number of best points whose neighbors a sweep tries."""


def plan_sweep(
    sweep: Experiment,
    sizing: Sizing,
    *,
    results_of: Callable[[Sequence[PlannedRun]], RunResults],
    tuned: TunedValues,
    stored: bool = False,
    **options: Any,
) -> list[PlannedRun]:
    """Plan the runs of a sweep: train without the validation rows, then score them.

    First come the runs of the grid. When all have results, add the neighbors of the two best
    points, and repeat until these two stay the best. So neither the end of the grid nor one local
    maximum limits the search. An epoch lacks the held-out rows, so the largest batch takes a few
    steps less.

    Args:
        sweep: an experiment of kind "sweep".
        sizing: batches and base rates.
        results_of: function that returns the existing results of runs.
        tuned: values that sweeps chose; those of this sweep are ignored.
        stored: whether the data have validation rows of their own, which the sweep then scores.
        **options: options of `plan_runs`.
    """
    own = sweep.lines[0].tuned_group
    others = {group: values for group, values in tuned.items() if group != own}
    rows = {"validation_fraction": 0.0 if stored else VALIDATION_FRACTION}
    rows |= {"validation_split": "given"} if stored else {}
    options = {**options, **rows, "tuned": others}
    points = grid_points(sweep)
    while True:
        runs = plan_runs(expand_sweep(sweep, points), sizing, **options)
        results = results_of(runs)
        if not runs or len(results) < len(runs):
            return runs
        new = _untried_neighbors(sweep, points, results)
        if not new:
            return runs
        points += new


def _untried_neighbors(
    sweep: Experiment, points: Sequence[Point], results: RunResults
) -> list[Point]:
    """Return the neighbors of the best points that are not in `points`."""
    by_label = {point_label(sweep, point): point for point in points}
    best = [by_label[label] for label in ranked_labels(results)[:BEAM_WIDTH]]
    near = (neighbor for point in best for neighbor in neighbors(sweep, point))
    return [point for point in dict.fromkeys(near) if point not in points]


Scores = dict[str, dict[int | str, list[float]]]
"""Label of a point -> multiplier -> validation AUC of each seed."""


def validation_scores(results: RunResults) -> Scores:
    """Return the validation AUC of each point's runs by multiplier; 0 for a diverged run."""
    found: Scores = {}
    for run, result in results.items():
        auc = 0.0 if math.isnan(result.auc) else result.auc
        found.setdefault(run.label, {}).setdefault(run.multiplier, []).append(auc)
    return found


def mean_score(by_multiplier: Mapping[int | str, list[float]]) -> float:
    """Return the mean over the multipliers of the mean over the seeds."""
    return statistics.fmean(map(statistics.fmean, by_multiplier.values()))


def ranked_labels(results: RunResults) -> list[str]:
    """Sort labels of the points by mean score, best first; ties keep the order of the runs.

    Points that lack one of the batches are omitted.
    """
    scores = validation_scores(results)
    batches = max(map(len, scores.values()))
    means = {label: mean_score(each) for label, each in scores.items() if len(each) == batches}
    return sorted(means, key=means.__getitem__, reverse=True)


def best_values(sweep: Experiment, results: RunResults) -> dict[str, float]:
    """Return the base values of the best point."""
    values = best_settings(results).overrides
    return {name: values[name] for name in (*sweep.grid, *sweep.grid_factors)}


def best_settings(results: RunResults) -> RunSettings:
    """Return the settings of the best point at its largest batch, to train on all rows."""
    chosen = ranked_labels(results)[0]
    tried = (run.settings for run in results if run.label == chosen)
    largest = max(tried, key=lambda settings: settings.batch_size)
    return replace(largest, validation_fraction=0.0, validation_split="random")


def any_finished(results: RunResults) -> bool:
    """Return whether at least one run did not diverge."""
    return any(not math.isnan(result.auc) for result in results.values())
