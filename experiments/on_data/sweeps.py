"""Sweeps: the points of a grid and beyond, which validation rows score, and the best of them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cowclip_merlin.experiments.definitions import Experiment
from cowclip_merlin.experiments.on_data.outputs import (
    TABLE_MEASURES,
    cells_of,
    further_tables,
    heading,
)
from cowclip_merlin.experiments.on_data.plan import PlannedRun, RunResults, by_cell, plan_runs
from cowclip_merlin.experiments.on_data.trainings import TrainingRuns
from cowclip_merlin.experiments.results import TunedValues, write_tuned
from cowclip_merlin.experiments.sizing import Sizing
from cowclip_merlin.experiments.tables import Cell, Table, experiment_table
from cowclip_merlin.training import RunSettings

BEAM_WIDTH = 2
"""Number of best points whose neighbors a sweep tries."""
STEPS_BEYOND = 3
"""How many values an axis may go beyond each of its ends."""
Point = tuple[float, ...]
"""One value per axis."""


class Axis(NamedTuple):
    """A hyper-parameter that a sweep varies: by values, or by factors of the base value."""

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
    if 0 in (end, before):  # which has no ratio
        return []
    ratio = end / before
    return [float(f"{end * ratio**step:.6g}") for step in range(1, STEPS_BEYOND + 1)]


def sweep_axes(sweep: Experiment) -> list[Axis]:
    """Return the axes of a sweep."""
    plain = [Axis(name, values, False) for name, values in sweep.grid.items()]
    return plain + [Axis(name, values, True) for name, values in sweep.grid_factors.items()]


def grid_points(sweep: Experiment) -> list[Point]:
    """Return all points of the file's grid."""
    return list(itertools.product(*(axis.values for axis in sweep_axes(sweep))))


def neighbors(sweep: Experiment, point: Point) -> list[Point]:
    """Return the points that differ from this one by one step on one axis.

    >>> from cowclip_merlin.experiments.files import load_experiment
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

    >>> from cowclip_merlin.experiments.files import load_experiment
    >>> point_label(load_experiment("sweep_r"), (1.0, 3.0, 1.0, 0.1))
    'r 1, embedding_lr x3, dense_lr x1, l2 x0.1'
    """
    pairs = zip(sweep_axes(sweep), point, strict=True)
    return ", ".join(f"{axis.name} {'x' if axis.factor else ''}{value:g}" for axis, value in pairs)


def expand_sweep(sweep: Experiment, points: Sequence[Point] | None = None) -> Experiment:
    """Convert the sweep to an experiment with one line per point; by default all grid points.

    >>> from cowclip_merlin.experiments.files import load_experiment
    >>> [line.label for line in expand_sweep(load_experiment("sweep_lr")).lines][:2]
    ['embedding_lr x0.25', 'embedding_lr x0.5']
    """
    (line,), axes = sweep.lines, sweep_axes(sweep)
    lines = []
    for point in grid_points(sweep) if points is None else points:
        pairs = list(zip(axes, point, strict=True))
        overrides = {axis.name: value for axis, value in pairs if not axis.factor}
        factors = {axis.name: value for axis, value in pairs if axis.factor}
        changed = {"overrides": {**line.overrides, **overrides}}
        changed["factors"] = {**line.factors, **factors}
        lines.append(replace(line, label=point_label(sweep, point), **changed))
    return replace(sweep, kind="runs", lines=tuple(lines))


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
    options["tuned"] = {group: values for group, values in tuned.items() if group != own}
    options |= {"sweep": True, "stored": stored}
    points = grid_points(sweep)
    while True:
        runs = plan_runs(expand_sweep(sweep, points), sizing, **options)
        results = results_of(runs)
        if not runs or len(results) < len(runs):
            return runs
        by_label = {point_label(sweep, point): point for point in points}
        best = [by_label[label] for label in _ranked_labels(results)[:BEAM_WIDTH]]
        near = (neighbor for point in best for neighbor in neighbors(sweep, point))
        new = [point for point in dict.fromkeys(near) if point not in points]
        if not new:
            return runs
        points += new


def validation_scores(results: RunResults) -> dict[str, dict[int | str, list[float]]]:
    """Return label of a point -> multiplier -> validation AUC of each seed; 0 if it diverged."""
    found: dict[str, dict[int | str, list[float]]] = {}
    for (label, multiplier), mine in by_cell(results).items():
        aucs = [0.0 if math.isnan(result.auc) else result.auc for result in mine]
        found.setdefault(label, {})[multiplier] = aucs
    return found


def mean_score(by_multiplier: Mapping[int | str, list[float]]) -> float:
    """Return the mean over the multipliers of the mean over the seeds."""
    return statistics.fmean(map(statistics.fmean, by_multiplier.values()))


def _ranked_labels(results: RunResults) -> list[str]:
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
    chosen = _ranked_labels(results)[0]
    tried = (run.settings for run in results if run.label == chosen)
    largest = max(tried, key=lambda settings: settings.batch_size)
    return replace(largest, validation_fraction=0.0, validation_split="random")


def sweep_tables(
    sweep: Experiment, sizing: Sizing, results: RunResults, **texts: str
) -> Iterator[Table]:
    """Make the tables of a sweep: of the first label, which chooses the best point, then others.

    A table has one row per point and one column per batch, the first one also a column of means.
    The best point comes first; those of the grid without a score are last.
    """
    scores = validation_scores(results)
    order = sorted(scores, key=lambda label: -mean_score(scores[label]))
    order += [line.label for line in expand_sweep(sweep).lines if line.label not in scores]
    of_auc = replace(sweep, measure="auc")
    note = "Neighbors of the two best points were tried until no neighbor was better."
    yield _sweep_table(of_auc, sizing, results, order, note, means=True, **texts)
    note = "The first label decides which point is the best, and the order."
    for of_label, found in further_tables(sweep, results):
        yield _sweep_table(of_label, sizing, found, order, note, **texts)


def _sweep_table(
    sweep: Experiment,
    sizing: Sizing,
    results: RunResults,
    order: Sequence[str],
    note: str,
    *,
    means: bool = False,
    **texts: str,
) -> Table:
    measure, multipliers = TABLE_MEASURES[sweep.measure], sweep.lines[0].multipliers
    means = means and len(multipliers) > 1
    lines = [replace(sweep.lines[0], label=label) for label in order]
    cells = cells_of(measure, lines, multipliers, results)
    rows = [(label, [cells[label, m] for m in multipliers]) for label in order]
    return experiment_table(
        sweep,
        unit=f"validation {measure.heading}",
        columns=(*(heading(m, sizing) for m in multipliers), *["mean"] * means),
        rows=tuple((label, (*mine, *[_mean_of(mine)] * means)) for label, mine in rows),
        notes=("Scored on validation rows; test rows are not used.", note),
        decimals=measure.decimals,
        **texts,
    )


def _mean_of(cells: Sequence[Cell]) -> Cell:
    """Return the mean over the batches; a point that was not run at one of them has none."""
    runs = min(cell.runs for cell in cells)
    if not runs:
        return Cell()
    if any(cell.mean is None for cell in cells):
        return Cell(text="diverged", runs=runs)
    return Cell(mean=statistics.fmean(cell.mean for cell in cells), runs=runs)


class SweepRuns(TrainingRuns):
    """The trainings of a sweep; each has a row in `results.csv`."""

    scores_validation = True
    then = ", then the neighbors of the best"

    def plan(self) -> list[PlannedRun]:
        """Return all runs so far, with or without a result."""
        return plan_sweep(
            self.experiment, self.sizing, results_of=self.results_of, **self.plan_options()
        )

    def best_settings(self) -> RunSettings | None:
        """Return the best settings, to train with; None before there are all results.

        Also None for a share of the rows, because all rows have another sizing.
        """
        results = self._complete()
        return best_settings(results) if results and self.session.settings.scale == 1 else None

    def _complete(self) -> RunResults | None:
        """Return the results; None if some are missing, or every run diverged."""
        runs = self.plan()
        results = self.results_of(runs)
        finished = any(result.status == "done" for result in results.values())
        return results if finished and len(results) == len(runs) else None

    def write(self) -> Iterator[str]:
        """Write the best values and the tables, and yield the text to print."""
        experiment, session = self.experiment, self.session
        if complete := self._complete():
            group, values = experiment.lines[0].tuned_group, best_values(experiment, complete)
            write_tuned(session.out, self.tuned_key, group, values)
        texts = session.texts(experiment)
        yield from map(self.table, sweep_tables(experiment, self.sizing, self.results(), **texts))
