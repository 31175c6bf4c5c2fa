"""Plan the runs of an experiment or a sweep: their settings, rows, ids and hashes."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import (
    NAMED_MULTIPLIERS,
    OF_RUN,
    Experiment,
    ExperimentLine,
)
from cowclip_merlin.experiments.results import Result, TunedValues
from cowclip_merlin.experiments.sizing import Sizing
from cowclip_merlin.loading import validation_rows
from cowclip_merlin.recipe import update_words
from cowclip_merlin.scaling import PRESETS
from cowclip_merlin.training import RunSettings
from cowclip_merlin.workflows import PreparedData

_PRESET_VALUES = ("embedding_lr", "dense_lr", "l2", "r", "zeta", "init_std", "warmup_epochs")
_USUAL_LAYERS: Mapping[str, Any] = MappingProxyType({"mlp": (400, 400, 400)})
SAMPLE_SEED = 20220413
VALIDATION_FRACTION = 0.1


@dataclass(frozen=True, kw_only=True)
class DataVariant:
    """A subset of a data set; by default all of it.

    >>> str(DataVariant(fraction=0.5, keep_top=3))
    'rows x 0.5, top 3 ids'
    """

    fraction: float = 1.0  # of the rows, in both splits; a seeded choice
    keep_top: int | None = None  # ids per field, the most frequent ones; None: all
    min_count: int | None = None  # occurrences in the training rows of the ids to keep

    def __post_init__(self) -> None:
        """Refuse values that would keep nothing."""
        if not 0 < self.fraction <= 1:
            raise InputError(f"`scale` is {self.fraction:g}; use a share above 0, at most 1")
        for name in ("keep_top", "min_count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")

    def __str__(self) -> str:
        """Return the changes as text; empty for the whole data set."""
        parts = [f"rows x {self.fraction:g}"] if self.fraction < 1 else []
        parts += [f"top {self.keep_top} ids"] if self.keep_top is not None else []
        parts += [f"ids seen {self.min_count} times"] if self.min_count is not None else []
        return ", ".join(parts)

    def fingerprint(self, data: PreparedData) -> str:
        """Return the fingerprint of the subset; for all of the data, that of the data."""
        if not str(self):
            return data.fingerprint
        whole = json.dumps([data.fingerprint, asdict(self), SAMPLE_SEED], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRun:
    """One training of a plan: a line at one of its multipliers, with one seed."""

    label: str
    multiplier: int | str
    settings: RunSettings
    variant: DataVariant

    def config_hash(self, fingerprint: str) -> str:
        """Return a hash that is equal for runs with equal results.

        `fingerprint` is that of the given data. Settings at their defaults are omitted, so that a
        new option does not change the names of earlier runs. So is a clip that the rule implies.
        """
        settings = self.settings
        if settings.clip and replace(settings, clip=None).effective_clip == settings.clip:
            settings = replace(settings, clip=None)
        given = settings.as_dict()
        usual = RunSettings(model="deepfm", batch_size=1).as_dict()
        changed = {k: v for k, v in given.items() if v != usual[k] or k in ("model", "batch_size")}
        whole = json.dumps([changed, asdict(self.variant), fingerprint], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def run_id(self, fingerprint: str) -> str:
        """Return a readable name for the run's folder."""
        s = self.settings
        parts = (s.model, s.rule, s.effective_clip, f"b{s.batch_size}", f"s{s.seed}")
        return "-".join((*parts, self.config_hash(fingerprint)))


RunResults = Mapping[PlannedRun, Result]
"""The existing results, by run."""
CellResults = Mapping[tuple[str, int | str], Sequence[Result]]
"""Label of a line and multiplier -> its results, one for each seed."""


def by_cell(results: RunResults) -> CellResults:
    """Return the results of each line at each multiplier."""
    found: dict[tuple[str, int | str], list[Result]] = {}
    for run, result in results.items():
        found.setdefault((run.label, run.multiplier), []).append(result)
    return found


def plan_runs(
    experiment: Experiment,
    sizing: Sizing,
    *,
    seeds: int,
    update: str = "exact",
    fraction: float = 1.0,
    tuned: TunedValues | None = None,
    sweep: bool = False,
    stored: bool = False,
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
        sweep: score validation rows instead of the test rows; lines that choose an epoch by them
            do so in any case.
        stored: whether the data have validation rows of their own.
        layers: attributes of `RunSettings` that describe the layers of all models.
    """

    def fraction_of(line: ExperimentLine) -> float:
        held_out = not stored and (sweep or line.chooses_epoch)
        return VALIDATION_FRACTION if held_out else 0.0

    def settings_of(line: ExperimentLine, multiplier: int | str, seed: int) -> RunSettings:
        settings = RunSettings(
            model=line.model,
            batch_size=sizing.batch(multiplier),
            base_batch_size=sizing.base_batch,
            preset=experiment.preset,
            rule=line.rule,
            clip=line.clip,
            update=line.update or update,
            epochs=line.epochs or sizing.epochs,
            seed=seed,
            overrides=_base_values(experiment.preset, line, sizing, multiplier, tuned or {}),
            validation_fraction=fraction_of(line),
            validation_split="given" if stored and (sweep or line.chooses_epoch) else "random",
            **{name: getattr(line, name) for name in OF_RUN},
            **(layers | ({"mlp": line.mlp} if line.mlp else {})),
        )
        if settings.update != "exact" or line.update:
            return settings
        return replace(settings, update=update_words(settings, experiment.preset)[0])

    return [
        PlannedRun(
            label=line.label,
            multiplier=multiplier,
            settings=settings_of(line, multiplier, seed),
            variant=DataVariant(
                fraction=fraction, keep_top=line.keep_top, min_count=line.min_count
            ),
        )
        for line in experiment.lines
        for multiplier in feasible_multipliers(line, sizing, fraction_of(line))
        for seed in range(1, seeds + 1)
    ]


def _base_values(
    preset: str, line: ExperimentLine, sizing: Sizing, multiplier: int | str, tuned: TunedValues
) -> dict[str, float]:
    """Return the values that replace the preset's at the base batch.

    Later sources win: the sizing's rates, tuned values, the line's overrides, values of the
    line's own sweep. The line's factors are applied last.
    """
    group = line.base_group
    known = getattr(PRESETS[preset], group)
    values = {**getattr(sizing, group), **tuned.get(group, {}), **line.overrides}
    if line.group is not None:
        values |= tuned.get(line.group, {})
    if group == "cowclip" and line.rule != "cowclip":  # the rule would start from the baseline
        values = {name: getattr(known, name) for name in _PRESET_VALUES} | values
    factors = dict(line.factors)
    if line.dense_rule == "linear":  # sqrt(s) of the rule times sqrt(s)
        factors["dense_lr"] = factors.get("dense_lr", 1.0) * sizing.factor(multiplier) ** 0.5
    for name, by in factors.items():
        values[name] = values.get(name, getattr(known, name)) * by
    return values


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
