"""Log the AUC of each serving copy once a day of event time is over."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timezone

import numpy as np

from cowclip_merlin import metrics
from cowclip_merlin.online.predictions import LABEL, TIME, PredictionFiles

DAY = 86_400
"""Seconds."""


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
        days = predictions.read()[TIME] // DAY
        self._day = int(days[-1]) if len(days) else None
        self._first = int(np.searchsorted(days, days[-1])) if len(days) else 0  # row of the day

    def update(self, now: int, ids: int) -> None:
        """Log the day before if its last event is scored.

        Args:
            now: time of the newest scored event.
            ids: ids in the table, for the line.
        """
        if self._day is None:
            self._day = int(self._predictions.read()[TIME][0]) // DAY
        if now // DAY > self._day:
            self._log_day(ids)

    def _log_day(self, ids: int) -> None:
        found = self._predictions.read(self._first)
        days = found[TIME] // DAY
        rows = int(np.searchsorted(days, self._day, side="right"))
        labels = found[LABEL][:rows]
        if 0 < int(labels.sum()) < rows:
            aucs = [100 * metrics.roc_auc(labels, found[name][:rows]) for name in self._sync]
            words = ", ".join(f"{name} {auc:.2f}" for name, auc in zip(self._sync, aucs))
        else:
            words = "none, as all labels are equal"
        when = datetime.fromtimestamp(self._day * DAY, tz=timezone.utc)
        line = "%s: %s rows, %s ids in the table; AUC %%: %s"
        self._log.info(line, when.strftime("%Y-%m-%d"), f"{rows:,}", f"{ids:,}", words)
        self._day, self._first = int(days[rows]), self._first + rows
