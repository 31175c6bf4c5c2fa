"""Draw the paper's figures from the results of runs, and from data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import NAMED_MULTIPLIERS, Experiment
from cowclip_merlin.experiments.figures import (
    Curve,
    draw_epochs,
    draw_ids,
    draw_multipliers,
    draw_times,
)
from cowclip_merlin.experiments.on_data.plan import (
    CellResults,
    PlannedRun,
    RunResults,
    by_cell,
)
from cowclip_merlin.experiments.results import Result
from cowclip_merlin.experiments.sizing import Sizing
from cowclip_merlin.loading import steps_per_epoch
from cowclip_merlin.training.run_logs import read_metrics
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.counts import frequencies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRADIENT_STEP = 1000
_PANELS = {
    "test AUC, %": ("test_auc", 100.0),
    "test log loss": ("test_log_loss", 1.0),
    "training loss": ("train_loss", 1.0),
}
"""Label of the vertical axis -> column of `metrics.csv` and its factor."""


def _finished(results: RunResults) -> CellResults:
    return by_cell({run: result for run, result in results.items() if result.status == "done"})


def epoch_figure(results: RunResults, sizing: Sizing, runs_folder: Path) -> Figure | None:
    """Draw Figures 5 and 6, test AUC and losses by epoch; None if every run diverged.

    There is one curve per line and batch.

    Raises:
        InputError: if a run folder lacks metrics.
    """
    groups = _finished(results)

    def curve(label: str, group: Sequence[Result], column: str, factor: float) -> Curve:
        rows = [_metrics(runs_folder, result) for result in group]
        runs = [[factor * float(row[column]) for row in run] for run in rows]
        return Curve(label=label, x=tuple(range(1, len(runs[0]) + 1)), runs=runs)

    measures = {
        title: [
            curve(f"{label}, batch {sizing.batch(m):,}", group, *column)
            for (label, m), group in groups.items()
        ]
        for title, column in _PANELS.items()
    }
    return draw_epochs(measures) if groups else None


def _metrics(runs_folder: Path, result: Result) -> list[dict[str, str]]:
    path = runs_folder / result.run_id / "metrics.csv"
    found = read_metrics(path, epochs=result.epochs)
    if len(found) < result.epochs:
        raise InputError(
            f"{path}: has {len(found)} of {result.epochs} epochs; a figure by epoch needs the run "
            "folders; restore them, or use another `out`"
        )
    return found


def _of_line(label: str, results: RunResults) -> dict[int | str, Sequence[Result]]:
    return {m: group for (name, m), group in _finished(results).items() if name == label}


def _by_seed(
    groups: Iterable[Sequence[Result]], value: Callable[[Result], float]
) -> list[list[float]]:
    """Return the values of each seed by multiplier; NaN where it has no finished run."""
    found = [{result.seed: value(result) for result in group} for group in groups]
    seeds = sorted(set().union(*found))
    return [[of_seed.get(seed, math.nan) for of_seed in found] for seed in seeds]


def time_figure(results: RunResults, sizing: Sizing) -> Figure | None:
    """Draw Figure 1, times of an epoch and of a step by batch; None if every run diverged."""
    curves = []
    for label in dict.fromkeys(label for label, _ in _finished(results)):
        groups = {sizing.batch(m): group for m, group in _of_line(label, results).items()}
        seconds = _by_seed(groups.values(), lambda result: result.seconds / result.epochs)
        curves.append(Curve(label=label, x=tuple(groups), runs=seconds))
    return draw_times(curves, rows=sizing.rows) if curves else None


def multiplier_figure(experiment: Experiment, results: RunResults) -> Figure | None:
    """Draw AUC against the multiple of the base batch; None if no line has several multiples."""
    curves = []
    for line in experiment.lines:
        groups = _of_line(line.label, results)
        if not groups or set(groups) & set(NAMED_MULTIPLIERS):
            continue
        auc = _by_seed(groups.values(), lambda result: 100 * result.auc)
        curves.append(Curve(label=line.label, x=tuple(groups), runs=auc))
    if not any(len(curve.x) > 1 for curve in curves):
        return None
    published = [
        Curve(label=line.label, x=tuple(known), runs=[list(known.values())])
        for line in experiment.lines
        if (known := {m: v for m, v in line.published.items() if m not in NAMED_MULTIPLIERS})
    ]
    return draw_multipliers(curves, published)


def id_frequency_figure(data: PreparedData) -> Figure:
    """Draw Figure 3: how often each id of a field occurs in the training rows.

    Raises:
        InputError: if no field has an id of its own.
    """
    counts = {field: frequencies(data, field) for field in data.tables}
    if not any(map(len, counts.values())):
        raise InputError(
            f"{data.path}: every id is missing or out of vocabulary; prepare with a smaller "
            "`freq_threshold`"
        )
    return draw_ids(counts)


def gradient_figure(run: PlannedRun, data: PreparedData, *, device: str) -> tuple[Figure, int]:
    """Draw Figure 4, gradient norms of the rows in one batch; also return the batch's step."""
    from cowclip_merlin.diagnostics import figure_4, probe_run

    steps = steps_per_epoch(data.rows["train"], run.settings.batch_size)
    step = min(GRADIENT_STEP, steps * run.settings.epochs - 1)
    norms = probe_run(data.path, run.settings, step=step, device=device)
    return figure_4(norms.cnt, norms.g_norm), step
