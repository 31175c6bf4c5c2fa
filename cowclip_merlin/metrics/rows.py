"""Check the labels, scores and weights that a metric gets."""

from __future__ import annotations

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
