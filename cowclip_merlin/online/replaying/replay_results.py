"""What a replay shows: AUC of each serving copy, in total and over time, as CSV and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from cowclip_merlin import metrics
from cowclip_merlin.online.replaying.predictions import LABEL, TIME, WEIGHT, with_weight
from cowclip_merlin.plotting.style import figure_settings, new_figure, save_figure, style
from cowclip_merlin.types import Array

Row = dict[str, Any]

PERIODS = {"day": 86_400, "hour": 3_600}
"""Seconds of the periods of the tables over time."""

_FORMATS = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d %H:00"}


def total_rows(predictions: Mapping[str, Array], sync: Sequence[str]) -> list[Row]:
    """Score each copy on all events, by their weights; `auc` is "" if all labels are equal.

    Args:
        predictions: labels, times, the scores of each copy, and weights if events have some.
        sync: names of the copies.
    """
    return [{"sync": name} | _scores(predictions, name) for name in sync]


def period_rows(predictions: Mapping[str, Array], sync: Sequence[str], period: str) -> list[Row]:
    """Score each copy in each day or hour of event time (UTC) that has events.

    `auc` is "" where all labels are equal.

    Args:
        predictions: as for `total_rows`, in time order.
        sync: names of the copies.
        period: one of `PERIODS`.
    """
    numbers = predictions[TIME] // PERIODS[period]
    found, first = np.unique(numbers, return_index=True)
    ends = [*first[1:].tolist(), len(numbers)]
    rows = []
    for number, start, end in zip(found.tolist(), first.tolist(), ends):
        when = datetime.fromtimestamp(number * PERIODS[period], tz=timezone.utc)
        for name in sync:
            scores = _scores(predictions, name, slice(start, end))
            rows.append({period: when.strftime(_FORMATS[period]), "sync": name} | scores)
    return rows


def _scores(predictions: Mapping[str, Array], name: str, part: slice = slice(None)) -> Row:
    found = {column: x[part] for column, x in predictions.items()}
    counted = with_weight(found)
    labels, scores, weights = counted[LABEL], counted[name], counted.get(WEIGHT)
    both = 0 < int(labels.sum()) < len(labels)
    return {
        "auc": metrics.roc_auc(labels, scores, sample_weight=weights) if both else "",
        "log_loss": metrics.log_loss(labels, scores, sample_weight=weights) if len(labels) else "",
        "rows": len(found[LABEL]),
    }


def draw_auc(path: Path, rows: Sequence[Row], sync: Sequence[str], period: str) -> None:
    """Draw the AUC of each copy over time as SVG; periods without an AUC leave a gap."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, DayLocator

    with figure_settings():
        figure = new_figure(7.0, 3.4)
        axes = figure.add_subplot()
        for i, name in enumerate(sync):
            mine = [row for row in rows if row["sync"] == name]
            times = [datetime.strptime(row[period], _FORMATS[period]) for row in mine]
            aucs = [np.nan if row["auc"] == "" else 100 * row["auc"] for row in mine]
            axes.plot(times, aucs, label=name, **style(i, len(mine)))
        days = len(rows) // len(sync)
        locator = AutoDateLocator()
        if period == "day" and days <= 10:  # it would put hours between few days
            locator = DayLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        axes.set_ylabel(f"AUC of each {period} (%)")
        axes.set_xlabel("time of the events (UTC)")
        axes.legend(title="synced every", fontsize=8)
        save_figure(figure, path)
