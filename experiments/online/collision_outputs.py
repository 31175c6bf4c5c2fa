"""Table and figure of the experiment with collisions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from cowclip_merlin.experiments.online.collision_settings import CollisionEpoch
from cowclip_merlin.plotting.style import figure_settings, new_figure, style

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


def draw_collisions(results: Sequence[CollisionEpoch]) -> Any:
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
            aucs = [_values(results, load, epoch, "auc") for epoch in epochs]
            look = style(index, len(epochs))
            axes.plot(epochs, [np.mean(each) for each in aucs], label=load_text(load), **look)
            low, high = [min(each) for each in aucs], [max(each) for each in aucs]
            axes.fill_between(epochs, low, high, color=look["color"], alpha=0.18, linewidth=0)
        axes.set(xlabel="epoch", ylabel="test AUC, %")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(title="ids per bucket", fontsize=8)
    return figure


def collision_table(results: Sequence[CollisionEpoch], epoch: int) -> str:
    """Return a Markdown table with one row for each load: mean ± standard deviation over seeds.

    Args:
        results: of all runs.
        epoch: whose results are shown.

    >>> auc = {"auc": 0.75, "log_loss": 0.5, "ids": 9, "hashed_ids": 5, "count": 2.0}
    >>> run = CollisionEpoch(load=0, seed=1, epoch=1, clipped_share=0, mean_clip_factor=1, **auc)
    >>> print(collision_table([run], 1).splitlines()[-1])
    | none | 75.00 | 0.5000 | 9 | 5 | 2.00 | 0.00 | 1.0000 |
    """
    headings = ["ids per bucket", *(heading for heading, _, _ in MEASURES.values())]
    lines = [headings, ["---", *["--:"] * len(MEASURES)]]
    for load in _loads(results):
        cells = [_cell(_values(results, load, epoch, name), name) for name in MEASURES]
        lines.append([load_text(load), *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def best_epoch(results: Sequence[CollisionEpoch]) -> int:
    """Return the epoch with the highest mean AUC of the runs with the lowest load."""
    first = _loads(results)[0]
    epochs = sorted({each.epoch for each in results if each.load == first})
    return max(epochs, key=lambda epoch: np.mean(_values(results, first, epoch, "auc")))


def load_text(load: float) -> str:
    """Format a load for readers.

    >>> load_text(0), load_text(0.163), load_text(4.0)
    ('none', '0.163', '4')
    """
    return f"{load:g}" if load else "none"


def _loads(results: Sequence[CollisionEpoch]) -> list[float]:
    return sorted({each.load for each in results})


def _values(results: Sequence[CollisionEpoch], load: float, epoch: int, name: str) -> list[float]:
    """Return one value for each seed, in the unit of the table."""
    factor = MEASURES[name][1]
    mine = [each for each in results if (each.load, each.epoch) == (load, epoch)]
    return [factor * getattr(each, name) for each in sorted(mine, key=lambda each: each.seed)]


def _cell(values: Sequence[float], name: str) -> str:
    decimals = MEASURES[name][2]
    text = f"{statistics.fmean(values):,.{decimals}f}"
    if len(values) < 2 or len(set(values)) == 1:
        return text
    return f"{text} ±{statistics.stdev(values):,.{decimals}f}"
