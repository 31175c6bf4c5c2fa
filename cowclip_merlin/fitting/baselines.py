"""What a model must beat on the same test rows: the click rate, and a logistic regression.

The regression has a weight for each id and number, the loss of scikit-learn's
`LogisticRegression(C=1)` on one-hot columns, and is fitted by SciPy's L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cowclip_merlin.loading import ColumnArrays, open_columns
from cowclip_merlin.metrics import log_loss, roc_auc
from cowclip_merlin.types import Array
from cowclip_merlin.workflows import PreparedData

MOST_ROWS = 500_000
"""Training rows that the regression takes at most, chosen at random."""
_PART = 1 << 17  # rows to predict at a time: their features take some 24 bytes per id
_STEPS = 100
_TOLERANCE = 1e-4  # of the gradient's largest part per row

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """How well simple predictions are, on the test rows.

    Attributes:
        name: of the predictions, for a table.
        auc: their AUC.
        log_loss: in nats.
    """

    name: str
    auc: float
    log_loss: float


def baselines(data: PreparedData, *, seed: int = 0) -> tuple[Baseline, Baseline]:
    """Score the test rows by the click rate of the training rows, and by a logistic regression.

    Args:
        data: a prepared folder with one label of 0 and 1, and with test rows.
        seed: chooses the training rows of the regression, if there are more than `MOST_ROWS`.
    """
    train, test = open_columns(data, "train"), open_columns(data, "test")
    rate = float(np.average(train.labels[:, 0], weights=train.weights))
    name = "logistic regression"
    if len(train) > MOST_ROWS:
        rows = np.random.default_rng(seed).choice(len(train), MOST_ROWS, replace=False)
        train, name = train.take(np.sort(rows)), f"{name} on {MOST_ROWS:,} rows"
    found = {
        "always the click rate": np.full(len(test), rate),
        name: logistic_regression(data, train)(test),
    }
    labels, weights = test.labels[:, 0], test.weights
    return tuple(
        Baseline(
            name=name,
            auc=roc_auc(labels, scores, sample_weight=weights),
            log_loss=log_loss(labels, scores, sample_weight=weights),
        )
        for name, scores in found.items()
    )


def logistic_regression(data: PreparedData, train: ColumnArrays) -> Callable[[ColumnArrays], Array]:
    """Fit a logistic regression; return what predicts the probabilities of rows, [n]."""
    from scipy.optimize import minimize

    x = _Features.of(data, train)
    y = train.labels[:, 0].astype(np.float64)
    of_row = np.ones(len(y)) if train.weights is None else train.weights.astype(np.float64)

    def loss(w: Vector) -> tuple[float, Vector]:
        """Return the loss and its gradient; all weights but the intercept, the last, have L2."""
        z = x.times(w)
        value = float((of_row * (np.logaddexp(0, z) - y * z)).sum() + w[:-1] @ w[:-1] / 2)
        gradient = x.transposed_times(of_row * (_sigmoid(z) - y))
        gradient[:-1] += w[:-1]
        return value, gradient

    how = {"maxiter": _STEPS, "gtol": _TOLERANCE * len(y), "ftol": 0}
    w = minimize(loss, np.zeros(x.weights), jac=True, method="L-BFGS-B", options=how).x

    def predict(rows: ColumnArrays) -> Vector:
        starts = range(0, len(rows), _PART)
        parts = (rows.take(np.arange(len(rows))[start : start + _PART]) for start in starts)
        return _sigmoid(np.concatenate([_Features.of(data, part).times(w) for part in parts]))

    return predict


def _sigmoid(z: Vector) -> Vector:
    return np.exp(-np.logaddexp(0, -z))


@dataclass(frozen=True, kw_only=True)
class _Features:
    """One-hot ids, numbers and a 1 for each row; a column's values of a row sum to 1.

    Attributes:
        weights: number of columns of the matrix, W.
        rows: number of rows, n.
        columns: of each categorical column the places of its ids, the rows that have them, and
            their values, each [m].
        numbers: float64 [n, C].
    """

    weights: int
    rows: int
    columns: list[tuple[Array, Array, Vector]] = field(repr=False)
    numbers: Vector = field(repr=False)

    @classmethod
    def of(cls, data: PreparedData, rows: ColumnArrays) -> _Features:
        first, columns, every = 0, [], np.arange(len(rows))
        for j, name in enumerate(data.categorical):
            ids, sizes = rows.column(j)
            of_row = np.repeat(every, sizes)
            columns.append((first + ids.astype(np.int64), of_row, 1.0 / sizes[of_row]))
            first += data.cardinalities[name]
        which = slice(None) if rows.rows is None else rows.rows
        numbers = rows.continuous[which].astype(np.float64)
        weights = first + numbers.shape[1] + 1
        return cls(weights=weights, rows=len(rows), columns=columns, numbers=numbers)

    def times(self, w: Vector) -> Vector:
        """Multiply the matrix [n, W] by weights [W]."""
        z = self.numbers @ w[self._ids : -1] + w[-1]
        for places, of_row, values in self.columns:
            z += np.bincount(of_row, values * w[places], minlength=self.rows)
        return z

    def transposed_times(self, r: Vector) -> Vector:
        """Multiply the transposed matrix by a number of each row, [n]."""
        found = np.zeros(self.weights)
        for places, of_row, values in self.columns:
            found += np.bincount(places, values * r[of_row], minlength=self.weights)
        found[self._ids : -1], found[-1] = self.numbers.T @ r, r.sum()
        return found

    @property
    def _ids(self) -> int:
        return self.weights - 1 - self.numbers.shape[1]
