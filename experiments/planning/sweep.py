"""Plan the runs of a sweep: a grid of base values, then the neighbors of its best points."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cowclip_merlin.experiments.definitions import Experiment, ExperimentLine
from cowclip_merlin.experiments.planning.plan import PlannedRun, RunResults, plan_runs
from cowclip_merlin.experiments.planning.sizing import Sizing
from cowclip_merlin.experiments.results.folder import TunedValues
from cowclip_merlin.training import RunSettings

STEPS_BEYOND = 3
"""How many values an axis may go beyond each of its ends."""

Point = tuple[float, ...]
"""One value per axis."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One hyper-parameter that a sweep varies.

    Attributes:
        name: name of the hyper-parameter.
        values: values of the grid, in the file's order.
        factor: whether the values multiply the base value, or replace it.
    """

    name: str
    values: tuple[float, ...]
    factor: bool

    def extended_values(self) -> list[float]:
        """Sort the values, and extend both ends by the ratio of the last two values there.

        >>> Axis(name="r", values=(1.0, 0.1), factor=False).extended_values()
        [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
        """
        inner = sorted(set(self.values))
        if len(inner) < 2:
            return inner
        return [*reversed(_beyond(*inner[:2])), *inner, *_beyond(inner[-1], inner[-2])]


def _beyond(end: float, before: float) -> list[float]:
    """Return the values beyond an end; empty if one of the two is 0, which has no ratio."""
    if 0 in (end, before):
        return []
    ratio = end / before
    return [float(f"{end * ratio**step:.6g}") for step in range(1, STEPS_BEYOND + 1)]


def sweep_axes(sweep: Experiment) -> list[Axis]:
    """Return the axes of a sweep."""
    plain = [Axis(name=n, values=v, factor=False) for n, v in sweep.grid.items()]
    return plain + [Axis(name=n, values=v, factor=True) for n, v in sweep.grid_factors.items()]


def grid_points(sweep: Experiment) -> list[Point]:
    """Return all points of the file's grid."""
    return list(itertools.product(*(axis.values for axis in sweep_axes(sweep))))


def neighbors(sweep: Experiment, point: Point) -> list[Point]:
    """Return the points that differ from this one by one step on one axis.

    >>> from cowclip_merlin.experiments.definitions import load_experiment
    >>> neighbors(load_experiment("sweep_lr"), (4.0,))
    [(2.0,), (8.0,)]
    """
    found = []
    for index, axis in enumerate(sweep_axes(sweep)):
        values = axis.extended_values()
        at = values.index(point[index])
        steps = values[max(at - 1, 0) : at] + values[at + 1 : at + 2]
        found += [(*point[:index], value, *point[index + 1 :]) for value in steps]
    return found


def point_label(sweep: Experiment, point: Point) -> str:
    """Return the label of a point's line.

    >>> from cowclip_merlin.experiments.definitions import load_experiment
    >>> point_label(load_experiment("sweep_r"), (1.0, 3.0, 1.0, 0.1))
    'r 1, embedding_lr x3, dense_lr x1, l2 x0.1'
    """
    pairs = zip(sweep_axes(sweep), point, strict=True)
    return ", ".join(f"{axis.name} {'x' if axis.factor else ''}{value:g}" for axis, value in pairs)


def expand_sweep(sweep: Experiment, points: Sequence[Point] | None = None) -> Experiment:
    """Convert the sweep to an experiment with one line per point; by default all grid points.

    >>> from cowclip_merlin.experiments.definitions import load_experiment
    >>> [line.label for line in expand_sweep(load_experiment("sweep_lr")).lines][:2]
    ['embedding_lr x0.25', 'embedding_lr x0.5']
    """
    points = grid_points(sweep) if points is None else points
    return replace(sweep, kind="runs", lines=tuple(_line(sweep, point) for point in points))


def _line(sweep: Experiment, point: Point) -> ExperimentLine:
    (line,) = sweep.lines
    pairs = list(zip(sweep_axes(sweep), point, strict=True))
    overrides = {axis.name: value for axis, value in pairs if not axis.factor}
    factors = {axis.name: value for axis, value in pairs if axis.factor}
    return replace(
        line,
        label=point_label(sweep, point),
        overrides={**line.overrides, **overrides},
        factors={**line.factors, **factors},
    )


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
