"""Compute the exact area under the ROC curve, without thresholds or bins.

>>> import numpy as np
>>> roc_auc(np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.4, 0.4]))
0.875
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics.probabilities import checked_rows, checked_weights

Weights = npt.NDArray[np.number]
"""Weights, float64, or sums of them; without weights the integer 1, or counts."""


def roc_auc(
    y_true: npt.ArrayLike, y_score: npt.ArrayLike, *, sample_weight: npt.ArrayLike | None = None
) -> float:
    """Compute the area under the ROC curve by ranks (Mann-Whitney); a tie counts one half.

    A pair of rows with different labels counts as much as the product of their weights.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: scores, shape [n], any float type; only their order matters.
        sample_weight: weights of the rows, shape [n], at least 0; None: all are equal.

    Raises:
        InputError: if shapes differ, a label is not 0 or 1, a score is NaN, a weight is negative
            or not finite, or a class is absent or has only weights of 0.

    >>> roc_auc([0, 1, 1], [0.5, 0.9, 0.1], sample_weight=[1, 3, 1])
    0.75
    """
    labels, scores, weights = _checked(y_true, y_score, sample_weight)
    return _auc(labels, _doubled_wins(labels, scores, weights), weights)


def auc_standard_error(
    y_true: npt.ArrayLike, y_score: npt.ArrayLike, *, sample_weight: npt.ArrayLike | None = None
) -> float:
    """Estimate the standard error of the AUC from the sampling of its rows.

    DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), doi:10.2307/2531595. Other rows of the
    same kind would change the AUC by about this much. The error of a difference between two models
    on the same rows is smaller: see `auc_difference`.

    With weights, a row and its weight are one draw: a row of weight 2 is not two rows. The variance
    of each weighted mean is m / (m - 1) times the sum of (weight * deviation)^2, with weights that
    sum to 1 over the m rows of a class. With equal weights this is DeLong's.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: scores, shape [n], any float type; only their order matters.
        sample_weight: weights of the rows, shape [n], at least 0; None: all are equal.

    Returns:
        The standard error, from 0 to 1; NaN if a class has only one row with a weight above 0.

    Raises:
        InputError: as `roc_auc`.

    >>> round(auc_standard_error([0, 0, 1, 1], [0.1, 0.6, 0.4, 0.9]), 4)
    0.3536
    """
    return auc_and_error(y_true, y_score, sample_weight=sample_weight)[1]


def auc_and_error(
    y_true: npt.ArrayLike, y_score: npt.ArrayLike, *, sample_weight: npt.ArrayLike | None = None
) -> tuple[float, float]:
    """Return `roc_auc` and `auc_standard_error` with one sort of the rows.

    >>> auc_and_error([0, 0, 1, 1], [0.1, 0.6, 0.4, 0.9])[0]
    0.75
    """
    labels, scores, weights = _checked(y_true, y_score, sample_weight)
    wins = _doubled_wins(labels, scores, weights)
    return _auc(labels, wins, weights), _error(labels, _shares(labels, wins, weights), weights)


def auc_difference(
    y_true: npt.ArrayLike,
    y_score: npt.ArrayLike,
    y_other: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
) -> tuple[float, float]:
    """Compare the AUC of two models on the same rows, with DeLong's standard error.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: scores of the first model, shape [n].
        y_other: scores of the second model for the same rows, shape [n].
        sample_weight: weights of the rows, shape [n], at least 0; None: all are equal.

    Returns:
        The AUC of the first minus that of the second, and the standard error of this difference;
        the error is NaN if a class has only one row with a weight above 0.

    Raises:
        InputError: as `roc_auc`.

    >>> better, worse = [0.1, 0.9, 0.2, 0.8, 0.3], [0.1, 0.9, 0.5, 0.8, 0.3]
    >>> difference, error = auc_difference([0, 1, 0, 1, 1], better, worse)
    >>> round(difference, 4), round(error, 4)
    (0.1667, 0.2357)
    """
    labels, scores, weights = _checked(y_true, y_score, sample_weight)
    wins = _doubled_wins(labels, scores, weights)
    others = _doubled_wins(labels, checked_rows(y_true, y_other)[1], weights)
    shares = _shares(labels, wins, weights) - _shares(labels, others, weights)
    difference = _auc(labels, wins, weights) - _auc(labels, others, weights)
    return difference, _error(labels, shares, weights)


def _checked(
    y_true: npt.ArrayLike, y_score: npt.ArrayLike, sample_weight: npt.ArrayLike | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.floating], Weights]:
    """Return labels, scores and weights; without weights the integer 1, so that sums are exact."""
    labels, scores = checked_rows(y_true, y_score)
    weights = checked_weights(sample_weight, labels.size)
    return labels, scores, np.ones_like(labels) if weights is None else weights


def _both_classes(labels: npt.NDArray[np.int64], weights: Weights) -> tuple[float, float]:
    """Return the weights of the positive and of the negative labels, or their numbers."""
    negatives, positives = (weights[labels == label].sum().item() for label in (0, 1))
    if positives == 0 or negatives == 0:
        of_zero = "" if weights.dtype == np.int64 else " with weights above 0"
        ones = int((labels * weights > 0).sum())
        raise InputError(
            f"AUC needs both classes, got {ones} positive and "
            f"{int((weights > 0).sum()) - ones} negative labels{of_zero}"
        )
    return positives, negatives


def _doubled_wins(
    labels: npt.NDArray[np.int64], scores: npt.NDArray[np.floating], weights: Weights
) -> Weights:
    """Sum, for each row, the weights of the other class on its right side; a tie counts one half.

    The sums are doubled, so that counts are exact integers, shape [n].
    """
    # Counts are the same in any order of tied rows; float sums of weights may differ in a bit.
    order = np.argsort(scores, kind=None if weights.dtype == np.int64 else "stable")
    ordered, ones, sizes = scores[order], labels[order] == 1, weights[order]
    starts = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))
    ends = np.append(starts[1:], ordered.size)
    # Twice the weight of each class below, tied rows once.
    below, above = (_sums_below(sizes * chosen, starts, ends) for chosen in (~ones, ones))
    above = 2 * (sizes * ones).sum() - above
    wins = np.empty_like(weights)
    wins[order] = np.where(ones, *(np.repeat(each, ends - starts) for each in (below, above)))
    return wins


def _sums_below(
    weights: Weights, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Weights:
    sums = np.concatenate(([0], np.cumsum(weights)))
    return sums[starts] + sums[ends]


def _auc(labels: npt.NDArray[np.int64], wins: Weights, weights: Weights) -> float:
    positives, negatives = _both_classes(labels, weights)
    total = (wins * weights)[labels == 1].sum().item()
    return total / (2 * positives * negatives)


def _shares(
    labels: npt.NDArray[np.int64], wins: Weights, weights: Weights
) -> npt.NDArray[np.float64]:
    """Return, for each row, the share of the other class on its right side, shape [n]."""
    positives, negatives = _both_classes(labels, weights)
    return wins / np.where(labels == 1, 2 * negatives, 2 * positives)


def _error(
    labels: npt.NDArray[np.int64], shares: npt.NDArray[np.float64], weights: Weights
) -> float:
    """Return DeLong's standard error of the mean share, for rows with a weight above 0."""
    classes = [(labels == label) & (weights > 0) for label in (0, 1)]
    if min(rows.sum() for rows in classes) < 2:
        return float("nan")
    return float(np.sqrt(sum(_variance(shares[rows], weights[rows]) for rows in classes)))


def _variance(shares: npt.NDArray[np.float64], weights: Weights) -> float:
    """Return the variance of the weighted mean of the shares of a class."""
    if weights.dtype == np.int64:
        return float(shares.var(ddof=1) / shares.size)
    parts = weights / weights.sum()
    deviations = parts * (shares - parts @ shares)
    return float(deviations @ deviations) * shares.size / (shares.size - 1)


class GroupedAuc(NamedTuple):
    """The mean AUC of groups of rows, such as the rows of one user.

    Attributes:
        auc: mean of the groups' AUCs, weighted by their rows or by the sums of their weights; NaN
            without such a group.
        groups: number of groups with both labels; only these have an AUC. A row of weight 0 does
            not count for this.
        all_groups: number of groups.
        rows: number of rows in the groups with both labels.
    """

    auc: float
    groups: int
    all_groups: int
    rows: int


def grouped_auc(
    y_true: npt.ArrayLike,
    y_score: npt.ArrayLike,
    groups: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
) -> GroupedAuc:
    """Compute the AUC within each group and average it, weighted by rows (GAUC).

    Zhou et al., "Deep Interest Network", KDD 2018, arXiv 1706.06978, section 6.2. It measures how
    well a model orders the items of one user. `roc_auc` also counts how well it tells users apart.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: scores, shape [n], any float type; only their order matters.
        groups: the group of each row, shape [n], of any type that NumPy can sort.
        sample_weight: weights of the rows, shape [n], at least 0; None: all are equal.

    Raises:
        InputError: if shapes differ, a label is not 0 or 1, a score is NaN, or weights are not
            those of `roc_auc`.

    >>> grouped_auc([0, 1, 1, 0, 1], [0.1, 0.9, 0.2, 0.3, 0.5], ["a", "a", "b", "b", "c"])
    GroupedAuc(auc=0.5, groups=2, all_groups=3, rows=4)
    """
    labels, scores, weights = _checked(y_true, y_score, sample_weight)
    names = np.asarray(groups).ravel()
    if names.size != labels.size:
        raise InputError(f"{labels.size} labels but {names.size} groups; give each label a group")
    _, ids, sizes = np.unique(names, return_inverse=True, return_counts=True)
    cells = np.bincount(2 * ids + labels, weights=weights, minlength=2 * sizes.size)
    of_class = cells.astype(weights.dtype).reshape(-1, 2)  # weights of both labels in each group
    scored = (of_class > 0).all(axis=1)
    pairs, whole = of_class[scored].prod(axis=1), of_class[scored].sum(axis=1)
    if sample_weight is not None:  # so that the weights of a group cannot blur those of others
        divisor = of_class[ids, labels]
        weights = np.divide(weights, divisor, out=np.zeros_like(weights), where=divisor > 0)
        pairs = np.ones_like(pairs)
    rows = int(sizes[scored].sum())
    wins = _doubled_wins_of_groups(ids, labels, scores, weights)[scored]
    auc = float(wins / (2 * pairs) @ whole / whole.sum()) if rows else float("nan")
    return GroupedAuc(auc=auc, groups=int(scored.sum()), all_groups=sizes.size, rows=rows)


def _doubled_wins_of_groups(
    ids: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
    scores: npt.NDArray[np.floating],
    weights: Weights,
) -> Weights:
    """Sum, for each group, the pairs that its scores order rightly; a tie counts one half.

    Args:
        ids: group of each row, shape [n].
        labels: 0 or 1, shape [n].
        scores: shape [n].
        weights: shape [n]; a pair counts as much as their product.

    Returns:
        The sums, doubled, so that counts are exact integers, shape [groups].
    """
    order = np.lexsort((scores, ids))
    group, score, positive = ids[order], scores[order], labels[order] == 1
    sizes = weights[order]
    is_new_group = np.diff(group, prepend=-1) > 0
    is_new_score = is_new_group | np.append(True, score[1:] != score[:-1])
    negatives = np.concatenate(([0], np.cumsum(~positive * sizes)))
    starts = np.flatnonzero(is_new_score)
    ends = np.append(starts[1:], order.size)
    lower = negatives[starts] + negatives[ends]  # twice the negatives below, tied ones once
    before = negatives[np.flatnonzero(is_new_group)]  # those of the groups before
    wins = np.repeat(lower, ends - starts) - 2 * before[group]
    total = np.zeros(group[-1] + 1, weights.dtype)
    np.add.at(total, group[positive], (wins * sizes)[positive])
    return total
