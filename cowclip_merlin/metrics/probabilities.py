"""Compute how well predicted click probabilities, or numbers, fit the labels; check the rows.

>>> labels, probabilities = [0, 1, 1, 0], [0.25, 0.5, 0.75, 0.25]
>>> round(log_loss(labels, probabilities), 4), calibration(labels, probabilities)
(0.389, 0.875)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError


def checked_rows(
    y_true: npt.ArrayLike, y_score: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]]:
    """Return labels [n] as int64 and scores [n] as floats.

    Raises:
        InputError: if shapes differ, there is no row, a label is not 0 or 1, or a score is NaN.
    """
    labels, scores = np.asarray(y_true).ravel(), np.asarray(y_score).ravel()
    if labels.shape != scores.shape:
        raise InputError(
            f"{labels.size} labels but {scores.size} scores; give one score for each label"
        )
    if labels.size == 0:
        raise InputError("no rows to score; give at least one label and score")
    if not np.isin(labels, (0, 1)).all():
        wrong = labels[~np.isin(labels, (0, 1))][0]
        raise InputError(f"label {wrong} is neither 0 nor 1")
    if not np.issubdtype(scores.dtype, np.floating):
        scores = scores.astype(np.float64)
    if np.isnan(scores).any():
        raise InputError(f"score of row {int(np.isnan(scores).argmax())} is NaN")
    return labels.astype(np.int64), scores


def checked_weights(
    sample_weight: npt.ArrayLike | None, rows: int
) -> npt.NDArray[np.float64] | None:
    """Return the weights of the rows, float64 [rows]; None if none are given.

    Raises:
        InputError: if their number is another, one is negative or not finite, or all are 0.
    """
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, np.float64).ravel()
    if weights.size != rows:
        raise InputError(f"{rows} labels but {weights.size} weights; give each label a weight")
    wrong = ~((weights >= 0) & np.isfinite(weights))
    if wrong.any():
        raise InputError(f"weight {weights[wrong][0]:g} is not a finite number of 0 or more")
    if not weights.any():
        raise InputError("all weights are 0; give at least one row a weight above 0")
    return weights


def log_loss(
    y_true: npt.ArrayLike, y_score: npt.ArrayLike, *, sample_weight: npt.ArrayLike | None = None
) -> float:
    """Compute the mean binary cross-entropy in nats, with a float64 sum.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: probabilities of label 1, shape [n]; clipped to [eps, 1 - eps], with the machine
            epsilon of their type, so that the result is finite.
        sample_weight: weights of the rows, shape [n], at least 0; None: all are equal.

    Raises:
        InputError: if shapes differ, a label is not 0 or 1, a score is NaN or not in [0, 1], or a
            weight is negative or not finite, or all are 0.

    >>> round(log_loss([0, 1], [0.5, 0.5]), 6)
    0.693147
    """
    labels, scores = checked_rows(y_true, y_score)
    if scores.size and not (scores.min() >= 0 and scores.max() <= 1):
        raise InputError(f"log loss needs probabilities, got {scores.min()} to {scores.max()}")
    epsilon = float(np.finfo(scores.dtype).eps)
    p = np.clip(scores.astype(np.float64), epsilon, 1 - epsilon)
    weights = checked_weights(sample_weight, labels.size)
    return float(-np.average(np.where(labels == 1, np.log(p), np.log1p(-p)), weights=weights))


def normalized_entropy(
    y_true: npt.ArrayLike, y_score: npt.ArrayLike, *, sample_weight: npt.ArrayLike | None = None
) -> float:
    """Divide the log loss by that of a constant prediction, the share of positive labels.

    He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014, section
    3, equation (3). Below 1 a model knows more than the average click rate. Logs with different
    click rates can be compared by it, unlike by their log loss.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: probabilities of label 1, shape [n]; see `log_loss`.
        sample_weight: weights of the rows, shape [n], at least 0; None: all are equal.

    Returns:
        The ratio; NaN if all labels with a weight above 0 are the same.

    Raises:
        InputError: as `log_loss`.

    >>> normalized_entropy([0, 1], [0.5, 0.5])
    1.0
    """
    return log_loss_and_entropy(y_true, y_score, sample_weight=sample_weight)[1]


def log_loss_and_entropy(
    y_true: npt.ArrayLike, y_score: npt.ArrayLike, *, sample_weight: npt.ArrayLike | None = None
) -> tuple[float, float]:
    """Return `log_loss` and `normalized_entropy`, which is made of it.

    >>> log_loss_and_entropy([0, 1], [0.5, 0.5])[1]
    1.0
    """
    loss = log_loss(y_true, y_score, sample_weight=sample_weight)
    labels = np.ravel(y_true).astype(np.float64)  # the mean of float32 would be rounded
    rate = float(np.average(labels, weights=checked_weights(sample_weight, labels.size)))
    if rate in (0.0, 1.0):
        return loss, float("nan")
    return loss, -loss / (rate * math.log(rate) + (1 - rate) * math.log1p(-rate))


def calibration(
    y_true: npt.ArrayLike, y_score: npt.ArrayLike, *, sample_weight: npt.ArrayLike | None = None
) -> float:
    """Divide the sum of the predicted probabilities by the number of positive labels.

    He et al., ADKDD 2014, section 3. It is 1 for a model whose average is right, and above 1 for
    one that predicts too many clicks.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: probabilities of label 1, shape [n].
        sample_weight: weights of the rows, shape [n], at least 0; None: all are equal.

    Returns:
        The ratio; NaN without a positive label of a weight above 0.

    Raises:
        InputError: if shapes differ, a label is not 0 or 1, a score is NaN, or a weight is negative
            or not finite, or all are 0.

    >>> calibration([0, 1], [0.25, 0.5])
    0.75
    """
    labels, scores = checked_rows(y_true, y_score)
    weights = checked_weights(sample_weight, labels.size)
    if weights is not None:
        labels, scores = labels * weights, scores * weights
    positives = labels.sum().item()
    return float(scores.sum(dtype=np.float64)) / positives if positives else float("nan")


class ReliabilityBin(NamedTuple):
    """Rows with similar predictions.

    Attributes:
        rows: number of rows.
        predicted: mean predicted probability.
        observed: share of positive labels.
    """

    rows: int
    predicted: float
    observed: float


def reliability(
    y_true: npt.ArrayLike,
    y_score: npt.ArrayLike,
    *,
    bins: int = 20,
    sample_weight: npt.ArrayLike | None = None,
) -> list[ReliabilityBin]:
    """Sort rows by their prediction, and compare it with the labels in bins of equal rows.

    Niculescu-Mizil and Caruana, "Predicting good probabilities with supervised learning", ICML
    2005, section 4. For a calibrated model, `predicted` is `observed` in every bin.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: probabilities of label 1, shape [n].
        bins: number of bins; rows with equal predictions share one, so there may be fewer.
        sample_weight: weights of the rows in both means, shape [n]; rows of weight 0 are left out.
            None: all are equal.

    Returns:
        The bins by rising prediction.

    Raises:
        InputError: as `calibration`.

    >>> for each in reliability([0, 1, 1, 1], [0.25, 0.25, 0.5, 1.0], bins=2):
    ...     print(each)
    ReliabilityBin(rows=2, predicted=0.25, observed=0.5)
    ReliabilityBin(rows=2, predicted=0.75, observed=1.0)
    """
    labels, scores = checked_rows(y_true, y_score)
    weights = checked_weights(sample_weight, labels.size)
    if weights is not None:
        labels, scores, weights = (each[weights > 0] for each in (labels, scores, weights))
    order = np.argsort(scores, kind="stable")
    ordered, ones = scores[order].astype(np.float64), labels[order]
    cuts = np.arange(bins) * ordered.size // bins
    first = np.unique(np.searchsorted(ordered, ordered[cuts]))  # equal predictions stay together
    sizes = np.diff(np.append(first, ordered.size))
    total = sizes
    if weights is not None:
        ordered, ones = ordered * weights[order], ones * weights[order]
        total = np.add.reduceat(weights[order], first)
    predicted, observed = (np.add.reduceat(each, first) / total for each in (ordered, ones))
    columns = sizes.tolist(), predicted.tolist(), observed.tolist()
    return [ReliabilityBin(*row) for row in zip(*columns, strict=True)]


def root_mean_squared_error(
    y_true: npt.ArrayLike, y_pred: npt.ArrayLike, *, sample_weight: npt.ArrayLike | None = None
) -> float:
    """Compute the square root of the mean squared error, with a float64 sum.

    Args:
        y_true: numbers, shape [n].
        y_pred: predictions of them, shape [n].
        sample_weight: weights of the rows, shape [n], at least 0; None: all are equal.

    Raises:
        InputError: if shapes differ, there is no row, a number is NaN, or a weight is negative or
            not finite, or all are 0.

    >>> root_mean_squared_error([1.0, 2.0], [1.0, 4.0], sample_weight=[3.0, 1.0])
    1.0
    """
    labels, predicted = (np.asarray(x, np.float64).ravel() for x in (y_true, y_pred))
    if labels.shape != predicted.shape:
        raise InputError(
            f"{labels.size} labels but {predicted.size} predictions; give one for each label"
        )
    if labels.size == 0:
        raise InputError("no rows to score; give at least one label and prediction")
    for what, numbers in (("label", labels), ("prediction", predicted)):
        if np.isnan(numbers).any():
            raise InputError(f"{what} of row {int(np.isnan(numbers).argmax())} is NaN")
    weights = checked_weights(sample_weight, labels.size)
    return float(np.sqrt(np.average(np.square(labels - predicted), weights=weights)))
