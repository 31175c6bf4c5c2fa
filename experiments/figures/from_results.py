"""Draw the paper's figures from results and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from cowclip_merlin.experiments.planning.plan import PlannedRun, RunResults
from cowclip_merlin.experiments.planning.sizing import Sizing
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.loading import steps_per_epoch
from cowclip_merlin.training.run_logs import read_metrics
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.report import frequencies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRADIENT_STEP = 1000
_PANELS = {
    "test AUC, %": ("test_auc", 100.0),
    "test log loss": ("test_log_loss", 1.0),
    "training loss": ("train_loss", 1.0),
}
"""Label of the vertical axis -> column of `metrics.csv` and its factor."""


def epoch_figure(results: RunResults, sizing: Sizing, runs_folder: Path) -> Figure:
    """Draw Figures 5 and 6: test AUC and losses by epoch, one curve per line and batch.

    Args:
        results: results of the runs, without the diverged ones; one or more must remain.
        sizing: batches of the runs.
        runs_folder: parent of the run folders.

    Raises:
        InputError: if a run folder lacks metrics.
    """
    groups = _by_line_and_multiplier(results)
    return draw_epochs(
        {
            title: [
                _epoch_curve(_label(key, sizing), group, runs_folder, column, factor)
                for key, group in groups.items()
            ]
            for title, (column, factor) in _PANELS.items()
        }
    )


def _epoch_curve(
    label: str, group: Sequence[Result], runs_folder: Path, column: str, factor: float
) -> Curve:
    runs = [
        [factor * float(row[column]) for row in _metrics(runs_folder, result)] for result in group
    ]
    return Curve(label=label, x=tuple(range(1, len(runs[0]) + 1)), runs=runs)


def _metrics(runs_folder: Path, result: Result) -> list[dict[str, str]]:
    path = runs_folder / result.run_id / "metrics.csv"
    found = read_metrics(path, epochs=result.epochs)
    if len(found) < result.epochs:
        raise InputError(
            f"{path}: has {len(found)} of {result.epochs} epochs; a figure by epoch needs the run "
            "folders; restore them, or use another `out`"
        )
    return found


def time_figure(results: RunResults, sizing: Sizing) -> Figure:
    """Draw Figure 1: relative time of an epoch and time of a step, by batch, with the paper's."""
    curves = []
    for label in dict.fromkeys(run.label for run in results):
        groups = {sizing.batch(m): group for m, group in _by_multiplier(label, results).items()}
        seconds = [[result.seconds / result.epochs for result in g] for g in groups.values()]
        curves.append(Curve(label=label, x=tuple(groups), runs=_by_seed(seconds)))
    return draw_times(curves, rows=sizing.rows)


def multiplier_figure(experiment: Experiment, results: RunResults) -> Figure | None:
    """Draw AUC against the multiple of the base batch; None if no line has several multiples."""
    ours = [_auc_curve(line.label, results) for line in experiment.lines]
    curves = [curve for curve in ours if curve is not None]
    if not any(len(curve.x) > 1 for curve in curves):
        return None
    published = [
        Curve(label=line.label, x=tuple(known), runs=[list(known.values())])
        for line in experiment.lines
        if (known := {m: v for m, v in line.published.items() if m not in NAMED_MULTIPLIERS})
    ]
    return draw_multipliers(curves, published)


def _auc_curve(label: str, results: RunResults) -> Curve | None:
    groups = _by_multiplier(label, results)
    if not groups or set(groups) & set(NAMED_MULTIPLIERS):
        return None
    auc = [[100 * result.auc for result in group] for group in groups.values()]
    return Curve(label=label, x=tuple(groups), runs=_by_seed(auc))


def _by_seed(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Transpose the values of each multiplier to one run per seed that all multipliers have."""
    return [list(run) for run in zip(*values)]


def _by_multiplier(label: str, results: RunResults) -> dict[int | str, list[Result]]:
    """Return a line's results by multiplier, without diverged runs."""
    groups = _by_line_and_multiplier(results)
    return {multiplier: group for (name, multiplier), group in groups.items() if name == label}


def _by_line_and_multiplier(results: RunResults) -> Mapping[tuple[str, int | str], list[Result]]:
    """Return the results by line and multiplier, without diverged runs."""
    groups: dict[tuple[str, int | str], list[Result]] = {}
    for run, result in results.items():
        if result.status == "done":
            groups.setdefault((run.label, run.multiplier), []).append(result)
    return groups


def _label(key: tuple[str, int | str], sizing: Sizing) -> str:
    label, multiplier = key
    return f"{label}, batch {sizing.batch(multiplier):,}"


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
