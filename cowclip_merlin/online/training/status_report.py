"""What a training on a stream tells: lines for the user, `metrics.csv`, and info for servers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from cowclip_merlin.online.logs.message_log import Position
from cowclip_merlin.online.monitoring import Metric, Numbers
from cowclip_merlin.online.settings import FULL
from cowclip_merlin.online.timers import Timer
from cowclip_merlin.online.training.recent_scores import TargetScores
from cowclip_merlin.online.training.shards.turns import About
from cowclip_merlin.system.machine import resident_megabytes
from cowclip_merlin.system.records import append_rows
from cowclip_merlin.types import Json, JsonObject

EVERY = 10.0
"""Seconds between two lines."""

COLUMNS = (
    "time",
    "trained",
    "events_per_second",
    "lag",
    "batch_factor",
    "event_time",
    "auc",
    "log_loss",
    "rows",
    "expired",
    "evicted",
    "repeats",
    "repeats_reach",
    "damaged",
    "syncs",
    "memory_mb",
    "embedding_lr",
    "dense_lr",
)
"""Columns of `metrics.csv`; `auc` and `log_loss` are those of the newest 100,000 events.

Those of each of several targets follow."""


METRICS = (
    Metric("events", "Events trained, in all processes of this run", "counter"),
    Metric("events_per_second", "Events trained per second since the line before"),
    Metric("lag_events", "Events of the log that are not trained yet"),
    Metric("batch_factor", "Times the batch size that a step takes"),
    Metric("event_age_seconds", "Age of the newest trained event", "age"),
    Metric("auc", "AUC of recent events before they were trained"),
    Metric("log_loss", "Log loss of recent events before they were trained"),
    Metric("rows", "Ids that have a row"),
    Metric("expired_rows", "Rows dropped because their ids were not seen for long", "counter"),
    Metric("evicted_rows", "Rows dropped because the table was full", "counter"),
    Metric("repeated_events", "Events dropped because their key was known", "counter"),
    Metric("repeats_reach_seconds", "Seconds for which keys are known; the window, or less"),
    Metric("damaged_events", "Events that could not be read", "counter"),
    Metric("syncs", "Syncs sent to servers", "counter"),
    Metric("memory_megabytes", "Memory of the process"),
    Metric("embedding_lr", "Learning rate of the embeddings"),
    Metric("dense_lr", "Learning rate of the dense weights"),
    Metric("snapshot_age_seconds", "Age of the newest snapshot", "age"),
    Metric("status_age_seconds", "Age of these numbers", "age"),
)
"""What Prometheus reads, as `cowclip_train_...`; the numbers are those of the newest line."""

_COLUMN_OF = {
    "events": "trained",
    "lag_events": "lag",
    "event_age_seconds": "event_time",
    "expired_rows": "expired",
    "evicted_rows": "evicted",
    "repeated_events": "repeats",
    "repeats_reach_seconds": "repeats_reach",
    "damaged_events": "damaged",
    "memory_megabytes": "memory_mb",
}
"""Metric -> column of `metrics.csv`, if their names differ."""


WORSE = (
    "the newest events are scored worse than always answering the click rate: normalized entropy "
    "%.3f; go back to an older snapshot, or train with smaller rates"
)


class StatusReport:
    """Writes a line and a row of `metrics.csv` every few seconds.

    Args:
        file: `metrics.csv`; rows are appended.
        log: for the lines.
        scores: of the newest events.

    Attributes:
        is_full: whether it was said that the table drops ids.
        newest: the numbers of the newest line, for `METRICS`.
    """

    def __init__(self, file: Path, log: logging.Logger, scores: TargetScores) -> None:
        self.newest: Numbers = {}
        self._file, self._log, self._scores = file, log, scores
        self._timer, self._trained, self._damaged = Timer(EVERY), 0, 0
        self.is_full = self._is_worse = False

    def begin(self, trained: int) -> None:
        """Count events from now on.

        Args:
            trained: events so far.
        """
        self._trained = trained
        self._timer.reset()

    @property
    def due(self) -> bool:
        """Whether it is time for a line."""
        return self._timer.due()

    def write(self, values: JsonObject, *, reason: str, snapshot_time: float | None = None) -> None:
        """Write a line.

        Args:
            values: of `COLUMNS` but those that this class knows.
            reason: what is wrong with the newest damaged message.
            snapshot_time: when the newest snapshot was written, in seconds since 1970; None: never.
        """
        rate = (values["trained"] - self._trained) / max(self._timer.elapsed, 1e-9)
        self.begin(values["trained"])
        row = values | {
            "time": f"{time.time():.1f}",
            "events_per_second": round(rate, 1),
            "auc": self._scores.first.auc(),
            "log_loss": self._scores.first.log_loss(),
            "memory_mb": round(resident_megabytes()),
        }
        of_targets = self._scores.metrics()
        row |= of_targets
        auc = "-" if row["auc"] is None else f"{100 * row['auc']:.2f}"
        self._log.info(
            "%s events, %s/s, lag %s, AUC %s %%, %s ids, %s MB%s",
            f"{row['trained']:,}",
            f"{rate:,.0f}",
            f"{row['lag']:,}",
            auc,
            f"{row['rows']:,}",
            f"{row['memory_mb']:,}",
            self._scores.words(of_targets),
            extra={"values": row},
        )
        self.newest = _numbers(row, snapshot_time)
        if row["damaged"] > self._damaged:
            self._damaged = row["damaged"]
            self._log.warning("%s damaged messages; the newest: %s", f"{row['damaged']:,}", reason)
        entropy = self._scores.first.normalized_entropy() or 0.0
        if entropy > 1 and not self._is_worse:
            self._log.warning(WORSE, entropy)
        self._is_worse = entropy > 1
        if row["evicted"] and not self.is_full:
            self.is_full = True
            self._log.warning(FULL)
        append_rows(self._file, (*COLUMNS, *self._scores.columns), [row])


def _numbers(row: Mapping[str, Json], snapshot_time: float | None) -> Numbers:
    """Return the values of `METRICS` of a row of `metrics.csv`."""
    columns = {each.name: _COLUMN_OF.get(each.name, each.name) for each in METRICS}
    found = {name: row.get(column) for name, column in columns.items()}
    found["event_age_seconds"] = row["event_time"] or None  # 0 before the first event
    return found | {"snapshot_age_seconds": snapshot_time, "status_age_seconds": time.time()}


def sync_info(
    *,
    trained: int,
    position: Position,
    lag: int,
    clock: int,
    scores: TargetScores,
    table: About,
) -> JsonObject:
    """Return what `SYNCED` tells servers about the training.

    Args:
        trained: events so far.
        position: in the log of events.
        lag: events that wait.
        clock: the newest event time in seconds.
        scores: of the newest events.
        table: what all workers have.
    """
    return {
        "trained": trained,
        "position": list(position),
        "lag": lag,
        "event_time": clock,
        "auc": scores.first.auc(),
        "rows": table.rows,
        "expired": table.expired + table.evicted,
        "refused": table.refused,
    }
