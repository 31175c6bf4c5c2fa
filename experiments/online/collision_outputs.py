"""Write the table and figure of an experiment with collisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.experiments.definitions import LogExperiment
from cowclip_merlin.experiments.figures import write_experiment_figure
from cowclip_merlin.experiments.online.collision_runs import (
    CollisionResult,
    CollisionRuns,
    read_collisions,
)
from cowclip_merlin.experiments.online.collisions import CollisionEpoch
from cowclip_merlin.experiments.online.log_runs import Measure, gain_measure, show_table
from cowclip_merlin.experiments.online.session import LogSession
from cowclip_merlin.plotting.style import figure_settings, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {
    "auc": ("AUC, %", 100, 2),
    "log_loss": ("log loss", 1, 4),
    "ids": ("ids of all columns", 1, 0),
    "hashed_ids": ("ids of hashed columns", 1, 0),
    "count": ("occurrences of such an id in a batch", 1, 2),
    "clipped_share": ("rows clipped, %", 100, 2),
    "mean_clip_factor": ("mean clip factor", 1, 4),
}
"""Attribute of a `CollisionEpoch` -> heading, factor and decimals in the table."""


def write_collisions(session: LogSession, experiment: LogExperiment) -> Iterator[str]:
    """Write table and figure, and yield their text."""
    wanted = {run.config_hash: run for run in CollisionRuns(session, experiment).plan()}
    results = [row for row in read_collisions(session) if row.config_hash in wanted]
    of_line: dict[str, list[CollisionResult]] = {line.label: [] for line in experiment.lines}
    for row in results:
        of_line[wanted[row.config_hash].line.label].append(row)
    epoch, texts = best_epoch(of_line[experiment.reference]), session.texts(experiment)
    by_seed = {
        label: {row.seed: row for row in rows if row.epoch == epoch}
        for label, rows in of_line.items()
    }
    measures = [Measure(name, *each) for name, each in MEASURES.items()]
    measures.insert(1, gain_measure(experiment, 2))
    notes = [f"After epoch {epoch}, the best of {experiment.reference!r}."]
    yield show_table(session, experiment, by_seed, measures, notes, texts)
    yield write_experiment_figure(session.out, draw_collisions(results), experiment, texts)


def draw_collisions(results: Sequence[CollisionEpoch]) -> Figure:
    """Draw the test AUC by epoch, one curve for each load, as in Figure 7 of Monolith.

    Lines are means over the seeds, and bands span the minimum to the maximum.

    Returns:
        A matplotlib `Figure`.
    """
    with figure_settings():
        figure = new_figure(5.6, 3.6)
        axes = figure.subplots()
        for index, load in enumerate(_loads(results)):
            epochs = sorted({each.epoch for each in results if each.load == load})
            aucs = [_aucs(results, load, epoch) for epoch in epochs]
            look = style(index, len(epochs))
            axes.plot(epochs, [np.mean(each) for each in aucs], label=load_text(load), **look)
            low, high = [min(each) for each in aucs], [max(each) for each in aucs]
            axes.fill_between(epochs, low, high, color=look["color"], alpha=0.18, linewidth=0)
        axes.set(xlabel="epoch", ylabel="test AUC, %")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(title="ids per bucket", fontsize=8)
    return figure


def best_epoch(results: Sequence[CollisionEpoch]) -> int:
    """Return the epoch with the highest mean AUC of the runs with the lowest load."""
    first = _loads(results)[0]
    epochs = sorted({each.epoch for each in results if each.load == first})
    return max(epochs, key=lambda epoch: np.mean(_aucs(results, first, epoch)))


def load_text(load: float) -> str:
    """Format a load for readers.

    >>> load_text(0), load_text(0.163), load_text(4.0)
    ('none', '0.163', '4')
    """
    return f"{load:g}" if load else "none"


def _loads(results: Sequence[CollisionEpoch]) -> list[float]:
    return sorted({each.load for each in results})


def _aucs(results: Sequence[CollisionEpoch], load: float, epoch: int) -> list[float]:
    """Return the AUC of each seed in %."""
    return [100 * each.auc for each in results if (each.load, each.epoch) == (load, epoch)]
