"""The newest events: AUC and log loss, scored before they were trained; stretches of one label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock

import numpy as np

from cowclip_merlin.metrics import (
    log_loss,
    normalized_entropy,
    roc_auc,
    root_mean_squared_error,
)
from cowclip_merlin.targets import Target, columns_of_targets
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
        regression: whether labels and scores are numbers.

    >>> recent = RecentScores(events=3)
    >>> recent.add(np.array([0, 1, 0, 1]), np.array([0.9, 0.5, 0.4, 0.3], np.float32))
    >>> recent.auc()  # of the last three
    0.5
    """

    def __init__(self, events: int = EVENTS, *, regression: bool = False) -> None:
        self._labels = np.zeros(events, np.float32 if regression else np.int8)
        self._scores = np.zeros(events, np.float32)
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

    def normalized_entropy(self) -> float | None:
        """Log loss divided by that of the click rate; None before as many events as are kept.

        A new model begins with scores that are worse than the click rate.
        """
        if len(self) < len(self._labels):
            return None
        labels, scores, weights = self._copies()
        if not labels.any() or labels.all():
            return None
        return float(normalized_entropy(labels, scores, sample_weight=weights))

    def rmse(self) -> float | None:
        """Root mean squared error of a regression; None without events."""
        labels, scores, weights = self._copies()
        if not len(labels):
            return None
        return float(root_mean_squared_error(labels, scores, sample_weight=weights))


class TargetScores:
    """The newest events that have a label, for each target.

    Args:
        targets: the targets.
        events: how many are kept of each.

    Attributes:
        first: of the first target.

    >>> scores = TargetScores([Target("click"), Target("sec", True)])
    >>> scores.add(np.array([[1.0, 2.0], [0.0, np.nan]]), np.array([[0.9, 2.5], [0.2, 1.0]]))
    >>> {name: round(value, 3) for name, value in scores.metrics().items()}
    {'click_auc': 1.0, 'click_log_loss': 0.164, 'sec_rmse': 0.5}
    """

    def __init__(self, targets: Sequence[Target], events: int = EVENTS) -> None:
        self._targets = tuple(targets)
        self._scores = [RecentScores(events, regression=each.regression) for each in targets]
        self.first = self._scores[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names in `metrics`, as in `metrics.csv` of an offline run."""
        kinds = {False: ("auc", "log_loss"), True: ("rmse",)}
        several = self._targets if len(self._targets) > 1 else ()
        return tuple(f"{name}_{kind}" for name, number in several for kind in kinds[number])

    def add(self, labels: Array, scores: Array, weights: Array | None = None) -> None:
        """Add events.

        Args:
            labels: [b], or [b, T] with NaN where one is missing.
            scores: predictions, of the same shape.
            weights: of the events, [b]; None without weights.
        """
        if len(self._targets) == 1:
            self.first.add(labels, scores, weights)
            return
        found = columns_of_targets(labels, self._targets)
        for (_, known, values), mine, column in zip(found, self._scores, scores.T):
            mine.add(values, column[known], None if weights is None else weights[known])

    def metrics(self) -> dict[str, float | None]:
        """AUC and log loss, or RMSE, of each of several targets; nothing with one."""
        found = (
            [each.rmse()] if target.regression else [each.auc(), each.log_loss()]
            for target, each in zip(self._targets, self._scores)
        )
        return dict(zip(self.columns, (value for values in found for value in values)))

    def words(self, metrics: Mapping[str, float | None]) -> str:
        """Describe all targets but the first for a line; empty if there are none.

        Args:
            metrics: as `metrics` returns them.

        >>> scores = TargetScores([Target("click"), Target("buy"), Target("sec", True)])
        >>> scores.words({"buy_auc": None, "sec_rmse": 0.5})
        ', buy AUC -, sec RMSE 0.5000'
        """
        return "".join(_words(target, metrics) for target in self._targets[1:])


def _words(target: Target, metrics: Mapping[str, float | None]) -> str:
    value = metrics[f"{target.name}_{'rmse' if target.regression else 'auc'}"]
    if target.regression:
        return f", {target.name} RMSE {'-' if value is None else f'{value:.4f}'}"
    return f", {target.name} AUC {'-' if value is None else f'{100 * value:.2f} %'}"


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
        if not len(labels):
            return
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
