"""From results and data to the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import NAMED_MULTIPLIERS, Experiment
from cowclip_merlin.experiments.figures import (
    Line,
    draw_epochs,
    draw_ids,
    draw_multipliers,
    draw_times,
)
from cowclip_merlin.experiments.plan import Run, factor
from cowclip_merlin.experiments.regime import Regime
from cowclip_merlin.experiments.results import Result
from cowclip_merlin.loading import steps_per_epoch
from cowclip_merlin.training.run_logs import read_metrics
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.report import frequencies

Results = Mapping[Run, Result]
GRADIENT_STEP = 1000


def curves(results: Results, regime: Regime, runs_folder: Path) -> Any:
    """Figures 5 and 6: test AUC and losses by epoch, a line for each line and batch.

    Diverged runs are left out; one must have ended.
    """
    groups = _by_place(results)
    panels = {"test AUC, %": ("test_auc", 100.0), "test log loss": ("test_log_loss", 1.0)}
    panels["training loss"] = ("train_loss", 1.0)
    return draw_epochs(
        {
            title: [
                _epochs(_label(place, regime), group, runs_folder, column, unit)
                for place, group in groups.items()
            ]
            for title, (column, unit) in panels.items()
        }
    )


def _epochs(
    label: str, group: Sequence[Result], runs_folder: Path, column: str, unit: float
) -> Line:
    runs = [
        [unit * float(row[column]) for row in _metrics(runs_folder, result)] for result in group
    ]
    return Line(label=label, x=tuple(range(1, len(runs[0]) + 1)), runs=runs)


def _metrics(runs_folder: Path, result: Result) -> list[dict[str, str]]:
    path = runs_folder / result.run_id / "metrics.csv"
    found = read_metrics(path, epochs=result.epochs)
    if len(found) < result.epochs:
        raise InputError(
            f"{path}: has {len(found)} of {result.epochs} epochs; a figure by epoch needs the run "
            "folders: put them back, or use another --out"
        )
    return found


def times(results: Results, regime: Regime) -> Any:
    """Figure 1: relative time of an epoch and time of a step, by batch, beside the paper's."""
    lines = []
    for label in dict.fromkeys(run.label for run in results):
        mine = {k: v for (name, k), v in _by_place(results).items() if name == label}
        seconds = {factor(m, regime) * regime.base_batch: group for m, group in mine.items()}
        least = min(len(group) for group in seconds.values())
        runs = [[g[i].seconds / g[i].epochs for g in seconds.values()] for i in range(least)]
        lines.append(Line(label=label, x=tuple(seconds), runs=runs))
    return draw_times(lines, rows=regime.rows)


def multipliers(experiment: Experiment, results: Results) -> Any | None:
    """AUC against the multiple of the base batch; None where there is but one multiple."""
    ours = [_over_multipliers(line.label, results) for line in experiment.lines]
    several = [line for line in ours if line is not None and len(line.x) > 1]
    if not several:
        return None
    published = [
        Line(label=line.label, x=tuple(known), runs=[list(known.values())])
        for line in experiment.lines
        if (known := {m: v for m, v in line.published.items() if m not in NAMED_MULTIPLIERS})
    ]
    return draw_multipliers([line for line in ours if line is not None], published)


def _over_multipliers(label: str, results: Results) -> Line | None:
    places = {m: g for (name, m), g in _by_place(results).items() if name == label}
    if not places or set(places) & set(NAMED_MULTIPLIERS):
        return None
    least = min(len(group) for group in places.values())
    runs = [[100 * group[i].auc for group in places.values()] for i in range(least)]
    return Line(label=label, x=tuple(places), runs=runs)


def _by_place(results: Results) -> dict[tuple[str, int | str], list[Result]]:
    """Results that did not diverge, by line and multiplier."""
    groups: dict[tuple[str, int | str], list[Result]] = {}
    for run, result in results.items():
        if result.status == "done":
            groups.setdefault((run.label, run.multiplier), []).append(result)
    return groups


def _label(place: tuple[str, int | str], regime: Regime) -> str:
    label, multiplier = place
    return f"{label}, batch {factor(multiplier, regime) * regime.base_batch:,}"


def ids_by_frequency(data: PreparedData) -> Any:
    """Figure 3: how often each id of a field occurs in the training rows."""
    counts = {field: frequencies(data, field) for field in data.categorical}
    return draw_ids(counts)


def gradients(run: Run, data: PreparedData, *, device: str) -> tuple[Any, int]:
    """Figure 4: norms of the gradients of the rows in one batch, and the step it is of."""
    from cowclip_merlin.diagnostics import figure_4, probe_run

    steps = steps_per_epoch(data.rows["train"], run.settings.batch_size)
    step = min(GRADIENT_STEP, steps * run.settings.epochs - 1)
    norms = probe_run(data.path, run.settings, step=step, device=device)
    return figure_4(norms.cnt, norms.g_norm), step
