"""Compute how well predicted numbers fit the labels of a regression."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics.rows import checked_weights


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
