"""Compute the metrics of a split on the device that has its logits, with one sort of them.

Only a few sums go to the host. The functions of `auc` and `probabilities` are the reference; their
docstrings have the formulas. Numbers of rows, and of pairs up to 2**53, are exact in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics.probabilities import ReliabilityBin
from cowclip_merlin.types import Tensor

NAN = float("nan")
_LAST = 2**34  # above the key of any row with a weight


class DeviceMetrics(NamedTuple):
    """Metrics of one split.

    Attributes:
        auc: as of `roc_auc`; NaN if all labels with a weight above 0 are the same.
        auc_error: as of `auc_standard_error`.
        log_loss: as of `log_loss`.
        normalized_entropy: as of `normalized_entropy`.
        calibration: as of `calibration`.
        bins: as of `reliability`.
        nan_rows: number of logits that are NaN; if there are any, the metrics mean nothing.
    """

    auc: float
    auc_error: float
    log_loss: float
    normalized_entropy: float
    calibration: float
    bins: list[ReliabilityBin]
    nan_rows: int


class _Sums(NamedTuple):
    """Sums over the rows, float64 []; of weights, where the rows have weights."""

    positives: Tensor
    negatives: Tensor
    doubled_wins: Tensor
    variance: Tensor
    loss: Tensor
    probabilities: Tensor
    nan_rows: Tensor


def metrics_on_device(*, bins: int = 20) -> Callable[..., DeviceMetrics]:
    """Return a function that computes the metrics of logits where they are.

    It takes labels of 0 and 1 [n], logits [n], and weights [n] of at least 0 or None, all float32
    tensors. It checks none of their values. It raises an `InputError` if there is no row, or all
    weights are 0.

    Args:
        bins: number of bins, as for `reliability`.

    >>> tf = compat.tensorflow()
    >>> found = metrics_on_device(bins=2)(tf.constant([0.0, 1.0, 0.0]), tf.constant([0.0, 1, 2]))
    >>> found.auc, [each.rows for each in found.bins]
    (0.5, [1, 2])
    """
    # A Python function: TensorFlow builds one graph for rows with weights and one for others.
    sums_of = compat.tensorflow().function(partial(_sums, bins=bins), autograph=False)

    def compute(labels: Tensor, logits: Tensor, weights: Tensor | None = None) -> DeviceMetrics:
        if not logits.shape[0]:
            raise InputError("no rows to score; give at least one label and score")
        found = sums_of(labels, logits, weights).numpy()
        count = len(_Sums._fields)
        return _metrics(_Sums(*found[:count].tolist()), found[count:].reshape(3, bins))

    return compute


def _metrics(sums: _Sums, bins: npt.NDArray[np.float64]) -> DeviceMetrics:
    """Compute the metrics from sums, and from rows and means of bins, [3, bins]."""
    positives, negatives = sums.positives, sums.negatives
    whole = positives + negatives
    if not whole:
        raise InputError("all weights are 0; give at least one row a weight above 0")
    loss, rate, both = sums.loss / whole, positives / whole, positives and negatives
    return DeviceMetrics(
        auc=sums.doubled_wins / (2 * positives * negatives) if both else NAN,
        auc_error=math.sqrt(sums.variance) if both else NAN,
        log_loss=loss,
        normalized_entropy=-loss / (rate * math.log(rate) + (1 - rate) * math.log1p(-rate))
        if 0 < rate < 1
        else NAN,
        calibration=sums.probabilities / positives if positives else NAN,
        bins=[ReliabilityBin(int(rows), *means) for rows, *means in bins.T.tolist() if rows],
        nan_rows=int(sums.nan_rows),
    )


def _sums(labels: Tensor, logits: Tensor, weights: Tensor | None, *, bins: int) -> Tensor:
    """Return all of `_Sums`, and then the bins, float64 [7 + 3 * bins]."""
    tf = compat.tensorflow()
    order = compat.argsort_on_device(_keys(logits, weights))
    labels, z = (tf.gather(tf.cast(each, tf.float64), order) for each in (labels, logits))
    e = tf.exp(-tf.abs(z))
    p = tf.where(z >= 0, 1 / (1 + e), e / (1 + e))
    w = tf.ones_like(p)
    if weights is not None:
        w = tf.gather(tf.cast(weights, tf.float64), order)
    ones, zeros = w * labels, w * (1 - labels)
    below = _Below(tf.where(w > 0, p, 2), ones, zeros)  # rows of weight 0 are the last
    positives, negatives = below.ones[-1], below.zeros[-1]
    wins = below.doubled_wins(labels > 0.5)
    classes = [(wins / (2 * negatives), ones), (wins / (2 * positives), zeros)]
    likely = tf.clip_by_value(p, np.finfo(float).eps, 1 - np.finfo(float).eps)
    losses = -w * tf.where(labels > 0.5, tf.math.log(likely), tf.math.log1p(-likely))
    sums = _Sums(
        positives=positives,
        negatives=negatives,
        doubled_wins=tf.reduce_sum(wins * ones),
        variance=sum(_variance(*each) for each in classes),
        loss=tf.reduce_sum(losses),
        probabilities=tf.reduce_sum(w * p),
        nan_rows=_number(tf.math.is_nan(z)),
    )
    return tf.concat([tf.stack(sums), *below.bins(_number(w > 0), w * p, bins)], axis=0)


def _keys(logits: Tensor, weights: Tensor | None) -> Tensor:
    """Return integers in the order of the logits, int64 [n]; rows of weight 0 come last."""
    tf = compat.tensorflow()
    bits = tf.cast(tf.bitcast(logits, tf.uint32), tf.int64)
    sign = 2**31  # the bits of negative numbers fall while these rise
    keys = tf.where(bits < sign, bits + sign, 2 * sign - 1 - bits)
    return keys if weights is None else tf.where(weights > 0, keys, _LAST)


class _Below:
    """Sums of the weights of rows below each place in their order.

    Args:
        ordered: the predictions in ascending order, float64 [n]; equal ones are a tie.
        ones: weights of the rows of label 1, else 0, float64 [n].
        zeros: weights of the rows of label 0, else 0, float64 [n].
    """

    def __init__(self, ordered: Tensor, ones: Tensor, zeros: Tensor) -> None:
        self._ordered, self.ones, self.zeros = ordered, _sums_before(ones), _sums_before(zeros)

    def doubled_wins(self, positive: Tensor) -> Tensor:
        """Return twice the weights of the other class on the right side of each row, [n]."""
        tf = compat.tensorflow()
        first, end = (self._place(self._ordered, side) for side in ("left", "right"))
        ones, zeros = (tf.gather(x, first) + tf.gather(x, end) for x in (self.ones, self.zeros))
        return tf.where(positive, zeros, 2 * self.ones[-1] - ones)

    def bins(self, rows: Tensor, predicted: Tensor, bins: int) -> list[Tensor]:
        """Return the rows of each bin, the mean prediction and the mean label, float64 [bins].

        A bin without rows is one whose predictions are those of the bin before.

        Args:
            rows: number of rows with a weight above 0, float64 [].
            predicted: weights times predictions, [n].
            bins: number of bins.
        """
        tf = compat.tensorflow()
        cuts = tf.range(bins, dtype=tf.int64) * tf.cast(rows, tf.int64) // bins
        first = self._place(tf.gather(self._ordered, cuts), "left")
        end = tf.concat([first[1:], [tf.cast(rows, tf.int64)]], axis=0)
        sums = (self.ones + self.zeros, _sums_before(predicted), self.ones)
        weight, of_bins, ones = (tf.gather(x, end) - tf.gather(x, first) for x in sums)
        return [tf.cast(end - first, tf.float64), of_bins / weight, ones / weight]

    def _place(self, values: Tensor, side: str) -> Tensor:
        tf = compat.tensorflow()
        return tf.searchsorted(self._ordered, values, side=side, out_type=tf.int64)


def _sums_before(weights: Tensor) -> Tensor:
    """Return the sum before each row, and that of all, float64 [n + 1]."""
    tf = compat.tensorflow()
    return tf.concat([tf.zeros(1, weights.dtype), tf.cumsum(weights)], axis=0)


def _number(which: Tensor) -> Tensor:
    tf = compat.tensorflow()
    return tf.reduce_sum(tf.cast(which, tf.float64))


def _variance(shares: Tensor, weights: Tensor) -> Tensor:
    """Return the variance of the weighted mean of a class; NaN with one row of a weight above 0."""
    tf = compat.tensorflow()
    rows, parts = _number(weights > 0), weights / tf.reduce_sum(weights)
    deviations = parts * (shares - tf.reduce_sum(parts * shares))
    squares = tf.reduce_sum(tf.square(deviations))
    return tf.where(rows > 1, squares * rows / (rows - 1), float("nan"))
