"""Log the AUC of each serving copy once a day of event time is over."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

import numpy as np

from cowclip_merlin import metrics
from cowclip_merlin.online.replaying.predictions import (
    LABEL,
    TIME,
    WEIGHT,
    PredictionFiles,
    with_weight,
)
from cowclip_merlin.types import Array

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
        days, first = np.unique(found[TIME] // DAY, return_index=True)
        ends = [*first[1:].tolist(), len(found[TIME])]
        for day, start, end in zip(days.tolist(), first.tolist(), ends):
            if before is not None and day >= before:
                self._day, self._first = day, self._first + start
                return
            self._log_day(day, {name: x[start:end] for name, x in found.items()}, ids)
        self._day = None

    def _log_day(self, day: int, found: Mapping[str, Array], ids: int) -> None:
        counted, rows = with_weight(found), len(found[LABEL])
        labels, weights = counted[LABEL], counted.get(WEIGHT)
        if 0 < int(labels.sum()) < len(labels):
            aucs = [
                100 * metrics.roc_auc(labels, counted[name], sample_weight=weights)
                for name in self._sync
            ]
            words = ", ".join(f"{name} {auc:.2f}" for name, auc in zip(self._sync, aucs))
        else:
            words = "none, as all labels are equal"
        when = datetime.fromtimestamp(day * DAY, tz=timezone.utc)
        line = "%s: %s rows, %s ids in the table; AUC %%: %s"
        self._log.info(line, when.strftime("%Y-%m-%d"), f"{rows:,}", f"{ids:,}", words)
