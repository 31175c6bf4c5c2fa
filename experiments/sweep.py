"""A grid of base values, scored on validation rows; the best are what experiments then use."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import Experiment
from cowclip_merlin.experiments.definitions.checks import check_rates
from cowclip_merlin.experiments.grid import expand, grid, label, neighbours
from cowclip_merlin.experiments.plan import Run, Tuned, plan
from cowclip_merlin.experiments.regime import Regime
from cowclip_merlin.experiments.results import Result
from cowclip_merlin.experiments.table import Cell, Table, measured, table_of
from cowclip_merlin.experiments.tables import heading
from cowclip_merlin.system.files import read_json, write_json
from cowclip_merlin.training import RunSettings

VALIDATION_FRACTION = 0.1
BEAM = 2
"""How many of the best points have all their neighbours tried."""


def sweep_plan(
    sweep: Experiment,
    regime: Regime,
    *,
    results_of: Callable[[Sequence[Run]], Mapping[Run, Result]],
    tuned: Tuned,
    **options: Any,
) -> list[Run]:
    """Runs of a sweep: trained without the validation rows, scored on them.

    First the grid. Once that has its results, the neighbours of the two best points, and so on
    until those stay the best, so that the best is not the best only for lying at the grid's end,
    or on a lower hill. The rows held out are missing from an epoch, so the largest batch makes a
    little fewer steps.

    Args:
        sweep: of kind "sweep".
        regime: sizes and base rates.
        results_of: the results that there are of some runs.
        tuned: what sweeps chose; this sweep's own choice is left out.
        **options: of `plan`.
    """
    own = sweep.lines[0].tuned_group
    others = {group: values for group, values in tuned.items() if group != own}
    options = {**options, "validation_fraction": VALIDATION_FRACTION, "tuned": others}
    points = grid(sweep)
    while True:
        runs = plan(expand(sweep, points), regime, **options)
        results = results_of(runs)
        if not runs or len(results) < len(runs):
            return runs
        named = {label(sweep, point): point for point in points}
        near = [p for best in ranked(results)[:BEAM] for p in neighbours(sweep, named[best])]
        new = [p for p in dict.fromkeys(near) if p not in points]
        if not new:
            return runs
        points += new


Scores = dict[str, dict[int | str, list[float]]]


def scores(results: Mapping[Run, Result]) -> Scores:
    """Validation AUC of each point's runs by multiplier; a diverged run counts as 0."""
    found: Scores = {}
    for run, result in results.items():
        auc = 0.0 if math.isnan(result.auc) else result.auc
        found.setdefault(run.label, {}).setdefault(run.multiplier, []).append(auc)
    return found


def mean_score(places: Mapping[int | str, list[float]]) -> float:
    """The mean over the multipliers of the mean over the seeds."""
    return statistics.fmean(map(statistics.fmean, places.values()))


def ranked(results: Mapping[Run, Result]) -> list[str]:
    """Points by their mean AUC on the validation rows, best first; equal ones as they were run.

    A point that was not run at all the batches of the others is not among them.
    """
    found = scores(results)
    most = max(map(len, found.values()))
    means = {label: mean_score(p) for label, p in found.items() if len(p) == most}
    return sorted(means, key=means.__getitem__, reverse=True)


def best(sweep: Experiment, results: Mapping[Run, Result]) -> dict[str, float]:
    """Base values of the best point."""
    values = best_settings(results).overrides
    return {name: values[name] for name in (*sweep.grid, *sweep.grid_factors)}


def best_settings(results: Mapping[Run, Result]) -> RunSettings:
    """Settings of the best point at its largest batch, to train on all training rows."""
    chosen = ranked(results)[0]
    tried = (run.settings for run in results if run.label == chosen)
    largest = max(tried, key=lambda settings: settings.batch_size)
    return replace(largest, validation_fraction=0.0)


def some_ended(results: Mapping[Run, Result]) -> bool:
    """Whether there is anything to choose from: a run that did not diverge."""
    return any(not math.isnan(result.auc) for result in results.values())


def sweep_table(
    sweep: Experiment, regime: Regime, results: Mapping[Run, Result], *, data: str, command: str
) -> Table:
    """The points with their scores, best first: a column for each batch, and their mean."""
    found, multipliers = scores(results), sweep.lines[0].multipliers
    order = sorted(found, key=lambda label: -mean_score(found[label]))
    order += [line.label for line in expand(sweep).lines if line.label not in found]
    several = len(multipliers) > 1
    return table_of(
        sweep,
        unit="validation AUC %",
        columns=(*(heading(m, regime) for m in multipliers), *["mean"] * several),
        rows=tuple((label, _cells(found.get(label, {}), multipliers)) for label in order),
        data=data,
        notes=(
            "Scored on rows cut from the training split; test rows are not seen.",
            "Neighbours of the two best points were tried until none was better.",
        ),
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


def read_tuned(out: Path, key: str) -> Tuned:
    """What sweeps chose for these data and sizes: group -> name -> base value.

    Args:
        out: results folder.
        key: `Session.tuned_key`: the data's fingerprint, a space, the sizes.

    Raises:
        InputError: the file is damaged.
    """
    return _read_all(out / "tuned.json").get(key, {})


def tuned_by_size(out: Path, fingerprint: str) -> dict[str, Tuned]:
    """What sweeps chose for this data set, by the sizes they were made at, in words.

    Raises:
        InputError: the file is damaged.
    """
    every = _read_all(out / "tuned.json").items()
    parts = ((*key.partition(" "), tuned) for key, tuned in every)
    return {sizes: tuned for data, _, sizes, tuned in parts if data == fingerprint}


def _read_all(path: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Of all data sets and sizes, by key; nothing if there is no file."""
    every = read_json(path) if path.exists() else {}
    for of_data in _mapping(path, every).values():
        for values in _mapping(path, of_data).values():
            check_rates(path, "tuned values", _mapping(path, values))
    return every


def _mapping(path: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(
            f"{path}: holds {value!r:.40} in place of a mapping; delete the file and sweep again"
        )
    return value


def write_tuned(out: Path, key: str, group: str, values: Mapping[str, float]) -> None:
    """Keep what a sweep chose; it is added to what other sweeps of this group chose."""
    path = out / "tuned.json"
    every = _read_all(path)
    mine = every.setdefault(key, {})
    mine[group] = {**mine.get(group, {}), **values}
    write_json(path, every)
