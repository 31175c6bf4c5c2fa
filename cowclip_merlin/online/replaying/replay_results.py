"""Predictions of a replay, its scores, and its report by day."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from cowclip_merlin import metrics
from cowclip_merlin.errors import InputError
from cowclip_merlin.plotting.style import figure_settings, new_figure, save_figure, style
from cowclip_merlin.types import Array

LABEL, TIME, WEIGHT = "label", "time", "weight"
_TYPES = {LABEL: np.dtype(np.int8), TIME: np.dtype(np.int64)}
_WEIGHT = {WEIGHT: np.dtype(np.float32)}
_SCORE = np.dtype(np.float32)


class PredictionFiles:
    """One file for each column: labels, times, weights, and the scores of each serving copy.

    Args:
        folder: of the files; made if it is not there.
        scores: names of the columns of scores.
        weighted: whether events have weights.
    """

    def __init__(self, folder: Path, scores: Sequence[str], *, weighted: bool = False) -> None:
        self._types = _TYPES | (_WEIGHT if weighted else {}) | dict.fromkeys(scores, _SCORE)
        self._paths = {name: folder / f"{name}.bin" for name in self._types}
        folder.mkdir(parents=True, exist_ok=True)
        for path in self._paths.values():
            path.touch()
        self.rows = 0

    def cut(self, rows: int) -> None:
        """Forget all but the first rows.

        Raises:
            InputError: a file has fewer rows.
        """
        for name, path in self._paths.items():
            size = rows * self._types[name].itemsize
            if path.stat().st_size < size:
                raise InputError(f"{path}: damaged (it ends too early); replay without `resume`")
            os.truncate(path, size)
        self.rows = rows

    def append(self, columns: Mapping[str, Array]) -> None:
        """Append rows, the same number to each column."""
        for name, path in self._paths.items():
            with path.open("ab") as stream:
                stream.write(np.ascontiguousarray(columns[name], self._types[name]).data)
        self.rows += len(columns[LABEL])

    def flush(self) -> None:
        """Wait until all rows are on the disk."""
        for path in self._paths.values():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())

    def read(self, names: Sequence[str] | None = None, *, first: int = 0) -> dict[str, Array]:
        """Return columns from a row on, [n] each.

        Args:
            names: of the columns; None for all.
            first: number of the first row.
        """
        return {
            name: np.fromfile(
                self._paths[name], self._types[name], offset=first * self._types[name].itemsize
            )
            for name in names or self._paths
        }


def with_weight(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return the rows of a weight above 0; all of them if the events have no weights.

    >>> with_weight({WEIGHT: np.array([0, 2]), LABEL: np.array([1, 0])})[LABEL]
    array([0])
    """
    if WEIGHT not in columns:
        return dict(columns)
    return {name: column[columns[WEIGHT] > 0] for name, column in columns.items()}


Row = dict[str, Any]

DAY = 86_400
"""Seconds."""

PERIODS = {"day": DAY, "hour": 3_600}
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


class DayReport:
    """Watches the predictions of a replay and logs one line for each day (UTC).

    Args:
        predictions: of the replay; a resumed replay has cut them before.
        sync: names of the serving copies.
        log: for the lines.
    """

    def __init__(
        self, predictions: PredictionFiles, sync: Sequence[str], log: logging.Logger
    ) -> None:
        self._predictions, self._sync, self._log = predictions, sync, log
        days = predictions.read([TIME])[TIME] // DAY
        self._day = int(days[-1]) if len(days) else None
        self._first = int(np.searchsorted(days, days[-1])) if len(days) else 0  # row of the day

    def update(self, now: int, ids: int) -> None:
        """Log the days before `now`.

        Args:
            now: time of the newest scored event.
            ids: ids in the table, for the lines.
        """
        if self._day is None:
            self._day = int(self._predictions.read([TIME])[TIME][0]) // DAY
        if now // DAY > self._day:
            self._log_days(ids, before=now // DAY)

    def close(self, ids: int) -> None:
        """Log the days that are left, the last one included."""
        if self._day is not None:
            self._log_days(ids)

    def _log_days(self, ids: int, before: int | None = None) -> None:
        found = self._predictions.read(first=self._first)
        rows = len(found[TIME])
        if before is not None:
            rows = int(np.searchsorted(found[TIME], before * DAY))
        days = period_rows({name: x[:rows] for name, x in found.items()}, self._sync, "day")
        for first in range(0, len(days), len(self._sync)):
            self._log_day(days[first : first + len(self._sync)], ids)
        self._day, self._first = before, self._first + rows

    def _log_day(self, copies: Sequence[Row], ids: int) -> None:
        if copies[0]["auc"] == "":
            words = "none, as all labels are equal"
        else:
            words = ", ".join(f"{row['sync']} {100 * row['auc']:.2f}" for row in copies)
        line = "%s: %s rows, %s ids in the table; AUC %%: %s"
        self._log.info(line, copies[0]["day"], f"{copies[0]['rows']:,}", f"{ids:,}", words)


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
