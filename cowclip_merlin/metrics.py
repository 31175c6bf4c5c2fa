"""Compute exact test metrics, without thresholds or bins, for any number of rows.

>>> import numpy as np
>>> roc_auc(np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.4, 0.4]))
0.875
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError


def roc_auc(y_true: npt.ArrayLike, y_score: npt.ArrayLike) -> float:
    """Compute the area under the ROC curve by ranks (Mann-Whitney); a tie counts one half.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: scores, shape [n], any float type; only their order matters.

    Raises:
        InputError: if shapes differ, a label is not 0 or 1, a score is NaN, or a class is absent.
    """
    labels, scores = _checked(y_true, y_score)
    positives = int(labels.sum())
    negatives = labels.size - positives
    if positives == 0 or negatives == 0:
        raise InputError(
            f"AUC needs both classes, got {positives} positive and {negatives} negative labels"
        )
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    starts = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))
    ends = np.append(starts[1:], ordered.size)
    # Ranks 1..n, where tied scores share the mean; doubled, so that they are exact integers.
    doubled_rank = np.repeat(starts + ends + 1, ends - starts)
    rank_sum = int(doubled_rank[labels[order] == 1].sum())
    doubled_wins = rank_sum - positives * (positives + 1)
    return doubled_wins / (2 * positives * negatives)


def log_loss(y_true: npt.ArrayLike, y_score: npt.ArrayLike) -> float:
    """Compute the mean binary cross-entropy in nats, with a float64 sum.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: probabilities of label 1, shape [n]; clipped to [eps, 1 - eps], with the machine
            epsilon of their type, so that the result is finite.

    Raises:
        InputError: if shapes differ, a label is not 0 or 1, or a score is NaN or not in [0, 1].

    >>> round(log_loss([0, 1], [0.5, 0.5]), 6)
    0.693147
    """
    labels, scores = _checked(y_true, y_score)
    if scores.size and not (scores.min() >= 0 and scores.max() <= 1):
        raise InputError(f"log loss needs probabilities, got {scores.min()} to {scores.max()}")
    epsilon = float(np.finfo(scores.dtype).eps)
    p = np.clip(scores.astype(np.float64), epsilon, 1 - epsilon)
    return float(-np.mean(np.where(labels == 1, np.log(p), np.log1p(-p))))


def _checked(
    y_true: npt.ArrayLike, y_score: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]]:
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
