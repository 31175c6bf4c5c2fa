"""The newest events: AUC and log loss, scored before they were trained; stretches of one label."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import numpy as np

from cowclip_merlin.metrics import log_loss, roc_auc
from cowclip_merlin.types import Array

EVENTS = 100_000
"""Events that are kept."""

_NEW = 0.01  # share of these events that must be new before AUC is computed again

EXPECTED = 30
"""Events of the other label that should have come before a stretch is said; chance gives none of
them once in e^30 stretches."""

PRIOR = (1, 100)
"""Clicks and events that the click rate begins with."""


class RecentScores:
    """The newest events' labels, probabilities and weights; a thread may add while another asks.

    Args:
        events: how many are kept.

    >>> recent = RecentScores(events=3)
    >>> recent.add(np.array([0, 1, 0, 1]), np.array([0.9, 0.5, 0.4, 0.3], np.float32))
    >>> recent.auc()  # of the last three
    0.5
    """

    def __init__(self, events: int = EVENTS) -> None:
        self._labels, self._scores = np.zeros(events, np.int8), np.zeros(events, np.float32)
        self._weights: Array | None = None
        self._added, self._lock = 0, Lock()
        self._auc: float | None = None
        self._auc_of = -1  # events added when it was computed

    def __len__(self) -> int:
        """Number of events that are kept."""
        return min(self._added, len(self._labels))

    def add(self, labels: Array, scores: Array, weights: Array | None = None) -> None:
        """Add events, all with weights or all without; the oldest are forgotten."""
        size = len(self._labels)
        if weights is not None and self._weights is None:
            self._weights = np.zeros(size, np.float32)
        with self._lock:
            places = (self._added + np.arange(len(labels)))[-size:] % size
            self._labels[places], self._scores[places] = labels[-size:], scores[-size:]
            if weights is not None:
                self._weights[places] = weights[-size:]
            self._added += len(labels)

    def _copies(self) -> tuple[Array, Array, Array | None]:
        """Labels, scores and weights as they are now: metrics are wrong if they change meanwhile.

        Events of weight 0 are left out.
        """
        with self._lock:
            size = len(self)
            labels, scores = self._labels[:size].copy(), self._scores[:size].copy()
            if self._weights is None:
                return labels, scores, None
            weights = self._weights[:size].copy()
        counts = weights > 0
        return labels[counts], scores[counts], weights[counts]

    def auc(self) -> float | None:
        """AUC; None if all labels are equal. Up to 1% of the events may be too new for it."""
        enough = self._auc_of + max(1, int(_NEW * len(self._labels)))
        if self._auc_of < 0 or self._added >= enough:
            self._auc, self._auc_of = self._compute_auc(), self._added
        return self._auc

    def _compute_auc(self) -> float | None:
        labels, scores, weights = self._copies()
        if not labels.any() or labels.all():
            return None
        return float(roc_auc(labels, scores, sample_weight=weights))

    def log_loss(self) -> float | None:
        """Log loss; None without events."""
        labels, scores, weights = self._copies()
        return float(log_loss(labels, scores, sample_weight=weights)) if len(labels) else None


class LabelStretch:
    """Says once per stretch that whole batches hold one label only.

    How long a stretch may be follows from the click rate before it: clicks may be rare.

    Args:
        warn: takes the line.

    >>> import numpy as np
    >>> stretch = LabelStretch(print)
    >>> for _ in range(3):
    ...     stretch.add(np.ones(100))
    the newest 100 events all have label 1, and the model learns little from batches of one label; \
if cowclip online join wrote them, its --window is longer than the stream of impressions
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._clicks, self._events = PRIOR  # before this stretch
        self._label, self._length, self._said = -1, 0, False

    def add(self, labels: Array) -> None:
        """Add a batch.

        Args:
            labels: 0 or 1, [b].
        """
        clicks = int(labels.sum())
        label = {0: 0, len(labels): 1}.get(clicks, -1)
        if label != self._label or label == -1:
            self._clicks += self._length * (self._label == 1)
            self._events += self._length
            self._label, self._length, self._said = label, 0, False
        if label == -1:
            self._clicks, self._events = self._clicks + clicks, self._events + len(labels)
            return
        self._length += len(labels)
        rate = self._clicks / self._events
        if self._length * (1 - rate if label else rate) >= EXPECTED and not self._said:
            self._said = True
            self._warn(
                f"the newest {self._length:,} events all have label {label}, and the model learns "
                "little from batches of one label; if cowclip online join wrote them, its "
                "--window is longer than the stream of impressions"
            )
