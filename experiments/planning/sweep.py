"""Runs of a sweep: a grid of base values, then the neighbors of its best points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from cowclip_merlin.experiments.planning.ranking import ranked_labels
from cowclip_merlin.experiments.planning.sizing import Sizing
from cowclip_merlin.experiments.results.tuned import TunedValues

VALIDATION_FRACTION = 0.1
BEAM_WIDTH = 2
"""For how many of the best points a sweep tries all neighbors."""


def plan_sweep(
    sweep: Experiment,
    sizing: Sizing,
    *,
    results_of: Callable[[Sequence[PlannedRun]], RunResults],
    tuned: TunedValues,
    **options: Any,
) -> list[PlannedRun]:
    """Runs of a sweep: trained without the validation rows, scored on them.

    First the runs of the grid. Once all of them have results, also those of the neighbors of the
    two best points, and so on until these two stay the best. So the end of the grid does not
    limit the search, nor does one lower hill. An epoch lacks the held-out rows, so the largest
    batch makes a few steps less.

    Args:
        sweep: of kind "sweep".
        sizing: batches and base rates.
        results_of: gives the results of some runs, as far as they exist.
        tuned: what sweeps chose; the choice of this sweep does not count.
        **options: of `plan_runs`.
    """
    own = sweep.lines[0].tuned_group
    others = {group: values for group, values in tuned.items() if group != own}
    options = {**options, "validation_fraction": VALIDATION_FRACTION, "tuned": others}
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
    """Neighbors of the best points that are not among `points`."""
    by_label = {point_label(sweep, point): point for point in points}
    best = [by_label[label] for label in ranked_labels(results)[:BEAM_WIDTH]]
    near = (neighbor for point in best for neighbor in neighbors(sweep, point))
    return [point for point in dict.fromkeys(near) if point not in points]
