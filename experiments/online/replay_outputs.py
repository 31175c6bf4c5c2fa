"""Write the table and figures of an experiment that replays a log."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import LogExperiment
from cowclip_merlin.experiments.figures import write_experiment_figure
from cowclip_merlin.experiments.online.log_runs import Measure, gain_measure, show_table
from cowclip_merlin.experiments.online.replay_runs import LineResults, line_results
from cowclip_merlin.experiments.online.session import LogSession
from cowclip_merlin.experiments.results.result import ReplayResult
from cowclip_merlin.plotting.style import figure_settings, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Sequence[ReplayResult]

FEW = 0.05
"""Share of the usual number of events below which an hour or a day is left out of a figure."""

MOST_DAYS = 14
"""Days whose hours can be told apart in a figure; with more, it shows days."""


def finished(results: LineResults) -> dict[str, Results]:
    """Return the results that did not diverge, for the lines that have one."""
    done = {
        label: [each for each in mine.values() if each.status == "done"]
        for label, mine in results.items()
    }
    return {label: mine for label, mine in done.items() if mine}


def draw_intervals(experiment: LogExperiment, results: LineResults) -> Figure:
    """Draw the AUC of each line, with the published numbers in a panel of their own.

    Bars span the minimum to the maximum of the seeds.
    """
    labels, done = [line.label for line in experiment.lines], finished(results)
    published = {
        line.label: line.published["auc"] for line in experiment.lines if "auc" in line.published
    }
    with figure_settings():
        figure = new_figure(7.0 if published else 4.5, 3.2)
        axes = figure.subplots(1, 2 if published else 1, squeeze=False)[0]
        _draw_points(axes[0], labels, {k: _aucs(mine) for k, mine in done.items()}, index=0)
        axes[0].set_title("measured here")
        if published:
            _draw_points(axes[1], labels, {k: [v] for k, v in published.items()}, index=1)
            axes[1].set_title("published")
        for one in axes:
            one.set_xticks(range(len(labels)), labels)
            one.set(xlabel=experiment.corner, ylabel="AUC, %", xlim=(-0.5, len(labels) - 0.5))
    return figure


def _draw_points(
    axes: Axes, labels: Sequence[str], values: Mapping[str, Sequence[float]], *, index: int
) -> None:
    at = [labels.index(label) for label in values]
    _error_bars(axes, at, list(values.values()), index)


def _error_bars(
    axes: Axes, x: Sequence[float], values: Sequence[Sequence[float]], index: int
) -> None:
    means = [np.mean(each) for each in values]
    low = [mean - min(each) for mean, each in zip(means, values, strict=True)]
    high = [max(each) - mean for mean, each in zip(means, values, strict=True)]
    axes.errorbar(x, means, yerr=[low, high], capsize=2.5, elinewidth=1, **style(index, len(x)))


def _aucs(results: Results) -> list[float]:
    return [100 * result.auc for result in results]


def draw_kept(experiment: LogExperiment, results: LineResults) -> Figure:
    """Draw the AUC of each line against the ids that it keeps; bars span the seeds."""
    done = finished(results)
    with figure_settings():
        figure = new_figure(5.6, 3.6)
        axes = figure.subplots()
        kept = [float(np.mean([each.ids_kept for each in mine])) for mine in done.values()]
        _error_bars(axes, kept, [_aucs(mine) for mine in done.values()], 0)
        for x, (label, mine) in zip(kept, done.items(), strict=True):
            spot = (x, float(np.mean(_aucs(mine))))
            axes.annotate(label, spot, xytext=(4, -11), textcoords="offset points", fontsize=8)
        axes.set(xlabel=f"ids kept (labels: {experiment.corner})", ylabel="AUC, %")
        axes.margins(x=0.12, y=0.12)
    return figure


def draw_over_time(experiment: LogExperiment, results: LineResults, runs: Path) -> Figure:
    """Draw the AUC of each hour of event time, or of each day; mean over the seeds.

    Args:
        experiment: the experiment.
        results: its existing results.
        runs: folder of the runs, which hold the numbers.

    Raises:
        InputError: if a run's folder is missing.
    """
    done = finished(results)
    period = "hour"
    if max(len(_auc_over_time(runs, mine[0], "day")) for mine in done.values()) > MOST_DAYS:
        period = "day"
    with figure_settings():
        figure = new_figure(7.0, 3.6)
        axes = figure.subplots()
        for index, (label, mine) in enumerate(done.items()):
            aucs = np.array([_auc_over_time(runs, each, period) for each in mine])
            steps = np.arange(1, aucs.shape[1] + 1)
            axes.plot(steps, aucs.mean(axis=0), label=label, **style(index, len(steps)))
        first = f"{period}s since the first scored event"
        axes.set(xlabel=first, ylabel=f"AUC of each {period}, %")
        axes.legend(title=experiment.corner, fontsize=8)
    return figure


def _auc_over_time(runs: Path, result: ReplayResult, period: str) -> list[float]:
    """Return the AUC of each period in %; NaN for one with one label, or with few events."""
    path = runs / result.run_id / f"auc_by_{period}.csv"
    if not path.exists():
        raise InputError(f"{path}: no such file; a figure over time needs the folders in runs/")
    with path.open(newline="", encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["sync"] == result.sync]
    fewest = FEW * np.median([int(row["rows"]) for row in found])
    return [
        100 * float(row["auc"]) if row["auc"] and int(row["rows"]) >= fewest else np.nan
        for row in found
    ]


NO_FIGURE = "no figure: every run diverged"

_AUC, _LOSS = Measure("auc", "AUC, %", 100, 3), Measure("log_loss", "log loss", 1, 4)
_KEPT = Measure("ids_kept", "ids kept", 1, 0)


def write_replays(session: LogSession, experiment: LogExperiment) -> Iterator[str]:
    """Write the table, and the figures that the results allow; yield the text to print."""
    results = line_results(session, experiment)
    texts = session.texts(experiment) | {"data": session.describe_data(describe_events(results))}
    measures = [_AUC, gain_measure(experiment, 3), _LOSS]
    if experiment.kind == "rules":
        measures.insert(0, _KEPT)
    notes = [f"{line.label}: {line.note}" for line in experiment.lines if line.note]
    yield show_table(session, experiment, results, measures, notes, texts)
    if not finished(results):
        yield NO_FIGURE
        return
    draw = draw_intervals if experiment.kind == "sync" else draw_kept
    yield write_experiment_figure(session.out, draw(experiment, results), experiment, texts)
    if experiment.kind == "sync":
        yield _over_time(session, experiment, results, texts)


def describe_events(results: LineResults) -> str:
    """Describe how many events were trained and scored; empty before the first result."""
    for mine in finished(results).values():
        return f"{mine[0].events:,} events, {mine[0].scored:,} of them scored"
    return ""


def _over_time(
    session: LogSession, experiment: LogExperiment, results: LineResults, texts: Mapping[str, str]
) -> str:
    try:
        figure = draw_over_time(experiment, results, session.out / "runs")
    except InputError as error:  # the numbers of the table do not need the folders of the runs
        return f"no figure over time: {error}"
    title = f"{experiment.title}: AUC over time"
    caption = "AUC of the events of each hour or day, mean over the seeds."
    name = f"{experiment.name}_over_time"
    return write_experiment_figure(
        session.out, figure, experiment, texts, name=name, title=title, caption=caption
    )
