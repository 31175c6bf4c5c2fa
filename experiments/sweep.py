"""A grid of base values, scored on validation rows; the best are what experiments then use."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cowclip_merlin.experiments.definition import Experiment, Line
from cowclip_merlin.experiments.plan import Run, Tuned, base_values, factor, plan
from cowclip_merlin.experiments.regime import Regime
from cowclip_merlin.experiments.results import Result
from cowclip_merlin.experiments.table import Cell, Table, measured, table_of
from cowclip_merlin.experiments.tables import heading
from cowclip_merlin.files import read_json, write_json

VALIDATION_FRACTION = 0.1


def expand(sweep: Experiment) -> Experiment:
    """The sweep as an experiment with one line for each point of its grid.

    >>> from cowclip_merlin.experiments.definition import load
    >>> [line.label for line in expand(load("sweep_lr")).lines][:2]
    ['embedding_lr x0.25', 'embedding_lr x0.5']
    """
    (line,) = sweep.lines
    return replace(sweep, kind="runs", lines=tuple(_points(line, sweep)))


def _points(line: Line, sweep: Experiment) -> list[Line]:
    axes = [[(name, v, False) for v in values] for name, values in sweep.grid.items()]
    axes += [[(name, v, True) for v in values] for name, values in sweep.grid_factors.items()]
    return [_point(line, point) for point in itertools.product(*axes)]


def _point(line: Line, point: tuple[tuple[str, float, bool], ...]) -> Line:
    label = ", ".join(f"{name} {'x' if by else ''}{value:g}" for name, value, by in point)
    overrides = {name: value for name, value, by in point if not by}
    factors = {name: value for name, value, by in point if by}
    return replace(
        line,
        label=label,
        overrides={**line.overrides, **overrides},
        factors={**line.factors, **factors},
    )


def sweep_plan(sweep: Experiment, regime: Regime, *, seeds: int, **options: Any) -> list[Run]:
    """Runs of a sweep: trained without the validation rows, scored on them.

    The rows held out are missing from an epoch, so the largest batch makes a little fewer steps.
    """
    options = {**options, "validation_fraction": VALIDATION_FRACTION}
    return plan(expand(sweep), regime, seeds=seeds, **options)


Scores = dict[str, dict[int | str, list[float]]]


def scores(sweep: Experiment, results: Mapping[Run, Result]) -> Scores:
    """Validation AUC of each point's runs by multiplier; a diverged run counts as 0."""
    found: Scores = {line.label: {} for line in expand(sweep).lines}
    for run, result in results.items():
        auc = 0.0 if math.isnan(result.auc) else result.auc
        found[run.label].setdefault(run.multiplier, []).append(auc)
    return {label: places for label, places in found.items() if places}


def mean_score(places: Mapping[int | str, list[float]]) -> float:
    """The mean over the multipliers of the mean over the seeds."""
    return statistics.fmean(map(statistics.fmean, places.values()))


def best(sweep: Experiment, regime: Regime, results: Mapping[Run, Result]) -> dict[str, float]:
    """Base values of the point with the best mean AUC on the validation rows.

    A point that was not run at all the batches of the others is not among them.
    """
    found = scores(sweep, results)
    most = max(map(len, found.values()))
    means = {label: mean_score(p) for label, p in found.items() if len(p) == most}
    chosen = max(means, key=means.__getitem__)
    (line,) = [line for line in expand(sweep).lines if line.label == chosen]
    values = base_values(sweep.preset, line, regime, factor(line.multipliers[0], regime), tuned={})
    return {name: values[name] for name in (*sweep.grid, *sweep.grid_factors)}


def sweep_table(
    sweep: Experiment, regime: Regime, results: Mapping[Run, Result], *, data: str, command: str
) -> Table:
    """The grid with its scores, best first: a column for each batch, and their mean."""
    found, multipliers = scores(sweep, results), sweep.lines[0].multipliers
    order = sorted(found, key=lambda label: -mean_score(found[label]))
    order += [line.label for line in expand(sweep).lines if line.label not in found]
    several = len(multipliers) > 1
    return table_of(
        sweep,
        unit="validation AUC %",
        columns=(*(heading(m, regime) for m in multipliers), *["mean"] * several),
        rows=tuple((label, _cells(found.get(label, {}), multipliers)) for label in order),
        data=data,
        notes=("Scored on rows cut from the training split; test rows are not seen.",),
        command=command,
    )


def _cells(
    places: Mapping[int | str, list[float]], multipliers: Sequence[int | str]
) -> tuple[Cell, ...]:
    cells = [
        measured([100 * auc for auc in places[m]]) if m in places else Cell() for m in multipliers
    ]
    if len(multipliers) == 1:
        return tuple(cells)
    if len(places) < len(multipliers):
        return (*cells, Cell())
    seeds = min(map(len, places.values()))
    return (*cells, Cell(mean=100 * mean_score(places), runs=seeds))


def read_tuned(out: Path, fingerprint: str) -> Tuned:
    """What sweeps chose for this data set: group -> name -> base value."""
    path = out / "tuned.json"
    return read_json(path).get(fingerprint, {}) if path.exists() else {}


def write_tuned(out: Path, fingerprint: str, group: str, values: Mapping[str, float]) -> None:
    """Keep what a sweep chose; it is added to what other sweeps of this group chose."""
    path = out / "tuned.json"
    every = read_json(path) if path.exists() else {}
    mine = every.setdefault(fingerprint, {})
    mine[group] = {**mine.get(group, {}), **values}
    write_json(path, every)
