"""Check the labels and scores that a metric gets."""

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
