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
from cowclip_merlin.metrics.rows import checked_rows


def roc_auc(y_true: npt.ArrayLike, y_score: npt.ArrayLike) -> float:
    """Compute the area under the ROC curve by ranks (Mann-Whitney); a tie counts one half.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: scores, shape [n], any float type; only their order matters.

    Raises:
        InputError: if shapes differ, a label is not 0 or 1, a score is NaN, or a class is absent.
    """
    labels, scores = checked_rows(y_true, y_score)
    return _auc(labels, _doubled_wins(labels, scores))


def auc_standard_error(y_true: npt.ArrayLike, y_score: npt.ArrayLike) -> float:
    """Estimate the standard error of the AUC from the sampling of its rows.

    DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), doi:10.2307/2531595. Other rows of the
    same kind would change the AUC by about this much. The error of a difference between two models
    on the same rows is smaller: see `auc_difference`.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: scores, shape [n], any float type; only their order matters.

    Returns:
        The standard error, from 0 to 1; NaN if a class has only one row.

    Raises:
        InputError: as `roc_auc`.

    >>> round(auc_standard_error([0, 0, 1, 1], [0.1, 0.6, 0.4, 0.9]), 4)
    0.3536
    """
    return auc_and_error(y_true, y_score)[1]


def auc_and_error(y_true: npt.ArrayLike, y_score: npt.ArrayLike) -> tuple[float, float]:
    """Return `roc_auc` and `auc_standard_error` with one sort of the rows.

    >>> auc_and_error([0, 0, 1, 1], [0.1, 0.6, 0.4, 0.9])[0]
    0.75
    """
    labels, scores = checked_rows(y_true, y_score)
    wins = _doubled_wins(labels, scores)
    return _auc(labels, wins), _error(labels, _shares(labels, wins))


def auc_difference(
    y_true: npt.ArrayLike, y_score: npt.ArrayLike, y_other: npt.ArrayLike
) -> tuple[float, float]:
    """Compare the AUC of two models on the same rows, with DeLong's standard error.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: scores of the first model, shape [n].
        y_other: scores of the second model for the same rows, shape [n].

    Returns:
        The AUC of the first minus that of the second, and the standard error of this difference;
        the error is NaN if a class has only one row.

    Raises:
        InputError: as `roc_auc`.

    >>> better, worse = [0.1, 0.9, 0.2, 0.8, 0.3], [0.1, 0.9, 0.5, 0.8, 0.3]
    >>> difference, error = auc_difference([0, 1, 0, 1, 1], better, worse)
    >>> round(difference, 4), round(error, 4)
    (0.1667, 0.2357)
    """
    labels, scores = checked_rows(y_true, y_score)
    wins = _doubled_wins(labels, scores)
    others = _doubled_wins(labels, checked_rows(y_true, y_other)[1])
    shares = _shares(labels, wins) - _shares(labels, others)
    return _auc(labels, wins) - _auc(labels, others), _error(labels, shares)


def _both_classes(labels: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Count the positive and the negative labels."""
    positives = int(labels.sum())
    negatives = labels.size - positives
    if positives == 0 or negatives == 0:
        raise InputError(
            f"AUC needs both classes, got {positives} positive and {negatives} negative labels"
        )
    return positives, negatives


def _doubled_wins(
    labels: npt.NDArray[np.int64], scores: npt.NDArray[np.floating]
) -> npt.NDArray[np.int64]:
    """Count, for each row, the rows of the other class on its right side; a tie counts one half.

    The counts are doubled, so that they are exact integers, shape [n].
    """
    order = np.argsort(scores, kind="stable")
    ordered, ones = scores[order], labels[order]
    starts = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))
    ends = np.append(starts[1:], ordered.size)
    positives = np.concatenate(([0], np.cumsum(ones)))
    lower = positives[starts] + positives[ends]  # twice the positives below, tied ones once
    sizes = ends - starts
    of_positive = np.repeat(starts + ends - lower, sizes)
    of_negative = np.repeat(2 * positives[-1] - lower, sizes)
    wins = np.empty(labels.size, np.int64)
    wins[order] = np.where(ones == 1, of_positive, of_negative)
    return wins


def _auc(labels: npt.NDArray[np.int64], wins: npt.NDArray[np.int64]) -> float:
    positives, negatives = _both_classes(labels)
    return int(wins[labels == 1].sum()) / (2 * positives * negatives)


def _shares(labels: npt.NDArray[np.int64], wins: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return, for each row, the share of the other class on its right side, shape [n]."""
    positives, negatives = _both_classes(labels)
    return wins / np.where(labels == 1, 2 * negatives, 2 * positives)


def _error(labels: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]) -> float:
    """Return DeLong's standard error of the mean share."""
    parts = [shares[labels == label] for label in (0, 1)]
    if min(part.size for part in parts) < 2:
        return float("nan")
    return float(np.sqrt(sum(part.var(ddof=1) / part.size for part in parts)))


class GroupedAuc(NamedTuple):
    """The mean AUC of groups of rows, such as the rows of one user.

    Attributes:
        auc: mean of the groups' AUCs, weighted by their rows; NaN without such a group.
        groups: number of groups with both labels; only these have an AUC.
        all_groups: number of groups.
        rows: number of rows in the groups with both labels.
    """

    auc: float
    groups: int
    all_groups: int
    rows: int


def grouped_auc(y_true: npt.ArrayLike, y_score: npt.ArrayLike, groups: npt.ArrayLike) -> GroupedAuc:
    """Compute the AUC within each group and average it, weighted by rows (GAUC).

    Zhou et al., "Deep Interest Network", KDD 2018, arXiv 1706.06978, section 6.2. It measures how
    well a model orders the items of one user. `roc_auc` also counts how well it tells users apart.

    Args:
        y_true: labels 0 or 1, shape [n].
        y_score: scores, shape [n], any float type; only their order matters.
        groups: the group of each row, shape [n], of any type that NumPy can sort.

    Raises:
        InputError: if shapes differ, a label is not 0 or 1, or a score is NaN.

    >>> grouped_auc([0, 1, 1, 0, 1], [0.1, 0.9, 0.2, 0.3, 0.5], ["a", "a", "b", "b", "c"])
    GroupedAuc(auc=0.5, groups=2, all_groups=3, rows=4)
    """
    labels, scores = checked_rows(y_true, y_score)
    names = np.asarray(groups).ravel()
    if names.size != labels.size:
        raise InputError(f"{labels.size} labels but {names.size} groups; give each label a group")
    _, ids, sizes = np.unique(names, return_inverse=True, return_counts=True)
    positives = np.bincount(ids, weights=labels).astype(np.int64)
    pairs = positives * (sizes - positives)
    scored = pairs > 0  # groups with both labels
    rows = int(sizes[scored].sum())
    wins = _doubled_wins_of_groups(ids, labels, scores)[scored]
    auc = float(wins / (2 * pairs[scored]) @ sizes[scored]) / rows if rows else float("nan")
    return GroupedAuc(auc=auc, groups=int(scored.sum()), all_groups=sizes.size, rows=rows)


def _doubled_wins_of_groups(
    ids: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
    scores: npt.NDArray[np.floating],
) -> npt.NDArray[np.int64]:
    """Count, for each group, the pairs that its scores order rightly; a tie counts one half.

    Args:
        ids: group of each row, shape [n].
        labels: 0 or 1, shape [n].
        scores: shape [n].

    Returns:
        The counts, doubled, so that they are exact integers, shape [groups].
    """
    order = np.lexsort((scores, ids))
    group, score, positive = ids[order], scores[order], labels[order] == 1
    is_new_group = np.diff(group, prepend=-1) > 0
    is_new_score = is_new_group | np.append(True, score[1:] != score[:-1])
    negatives = np.concatenate(([0], np.cumsum(~positive)))
    starts = np.flatnonzero(is_new_score)
    ends = np.append(starts[1:], order.size)
    lower = negatives[starts] + negatives[ends]  # twice the negatives below, tied ones once
    before = negatives[np.flatnonzero(is_new_group)]  # those of the groups before
    wins = np.repeat(lower, ends - starts) - 2 * before[group]
    total = np.zeros(group[-1] + 1, np.int64)
    np.add.at(total, group[positive], wins[positive])
    return total
