"""What a training on a stream tells: lines for the user, `metrics.csv`, and info for servers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.online.logs.message_log import Position
from cowclip_merlin.online.report import Number
from cowclip_merlin.online.service import Service
from cowclip_merlin.online.settings import FULL
from cowclip_merlin.online.training.recent_scores import TargetScores
from cowclip_merlin.system.machine import resident_megabytes
from cowclip_merlin.system.records import append_rows
from cowclip_merlin.types import JsonObject

if TYPE_CHECKING:
    from cowclip_merlin.online.training.workers import About

NUMBERS = (
    Number("time", "Age of these numbers", "age", name="status_age_seconds"),
    Number("trained", "Events trained, in all processes of this run", "counter", name="events"),
    Number("events_per_second", "Events trained per second since the line before"),
    Number("lag", "Events of the log that are not trained yet", name="lag_events"),
    Number("batch_factor", "Times the batch size that a step takes"),
    Number("event_time", "Age of the newest trained event", "age", name="event_age_seconds"),
    Number("auc", "AUC of recent events before they were trained"),
    Number("log_loss", "Log loss of recent events before they were trained"),
    Number("rows", "Ids that have a row"),
    Number(
        "expired",
        "Rows dropped because their ids were not seen for long",
        "counter",
        name="expired_rows",
    ),
    Number("evicted", "Rows dropped because the table was full", "counter", name="evicted_rows"),
    Number(
        "repeats", "Events dropped because their key was known", "counter", name="repeated_events"
    ),
    Number(
        "repeats_reach",
        "Seconds for which keys are known; the window, or less",
        name="repeats_reach_seconds",
    ),
    Number("damaged", "Events that could not be read", "counter", name="damaged_events"),
    Number("syncs", "Syncs sent to servers", "counter"),
    Number("memory_mb", "Memory of the process", name="memory_megabytes"),
    Number("embedding_lr", "Learning rate of the embeddings"),
    Number("dense_lr", "Learning rate of the dense weights"),
    Number("snapshot_time", "Age of the newest snapshot", "age", name="snapshot_age_seconds"),
)
"""What Prometheus reads, as `cowclip_train_...`; the values are those of the newest line."""

COLUMNS = tuple(each.key for each in NUMBERS[:-1])
"""Columns of `metrics.csv`; `auc` and `log_loss` are those of the newest 100,000 events.

Those of each of several targets follow."""

WORSE = (
    "the newest events are scored worse than always answering the click rate: normalized entropy "
    "%.3f; go back to an older snapshot, or train with smaller rates"
)


class StatusReport:
    """Writes a line and a row of `metrics.csv`.

    Args:
        file: `metrics.csv`; rows are appended.
        service: writes the lines.
        scores: of the newest events.

    Attributes:
        is_full: whether it was said that the table drops ids.
    """

    def __init__(self, file: Path, service: Service, scores: TargetScores) -> None:
        self._file, self._service, self._scores = file, service, scores
        self._damaged = 0
        self.is_full = self._is_worse = False

    def write(self, values: JsonObject, *, reason: str, snapshot_time: float | None = None) -> None:
        """Write a line.

        Args:
            values: of `COLUMNS` but those that this class knows.
            reason: what is wrong with the newest damaged message.
            snapshot_time: when the newest snapshot was written, in seconds since 1970; None: never.
        """
        rate, of_targets = self._service.rate(values["trained"]), self._scores.metrics()
        row = values | {
            "time": round(time.time(), 1),
            "events_per_second": round(rate, 1),
            "auc": self._scores.first.auc(),
            "log_loss": self._scores.first.log_loss(),
            "memory_mb": round(resident_megabytes()),
            **of_targets,
        }
        self._service.write_line(
            row,
            "%s events, %s/s, lag %s, AUC %s %%, %s ids, %s MB%s",
            f"{row['trained']:,}",
            f"{rate:,.0f}",
            f"{row['lag']:,}",
            "-" if row["auc"] is None else f"{100 * row['auc']:.2f}",
            f"{row['rows']:,}",
            f"{row['memory_mb']:,}",
            self._scores.words(of_targets),
            event_time=row["event_time"] or None,  # 0 before the first event
            snapshot_time=snapshot_time,
        )
        self._warn(row, reason)
        append_rows(self._file, (*COLUMNS, *self._scores.columns), [row])

    def _warn(self, row: JsonObject, reason: str) -> None:
        log = self._service.log
        if row["damaged"] > self._damaged:
            self._damaged = row["damaged"]
            log.warning("%s damaged messages; the newest: %s", f"{row['damaged']:,}", reason)
        entropy = self._scores.first.normalized_entropy() or 0.0
        if entropy > 1 and not self._is_worse:
            log.warning(WORSE, entropy)
        self._is_worse = entropy > 1
        if row["evicted"] and not self.is_full:
            self.is_full = True
            log.warning(FULL)


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
