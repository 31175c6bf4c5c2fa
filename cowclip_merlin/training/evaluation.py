"""Predict the rows of a split and compute exact metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin import metrics
from cowclip_merlin.loading import Data
from cowclip_merlin.system.files import atomic_write

PREDICTION_BATCH_SIZE = 16384


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Exact metrics of one split.

    Attributes:
        auc: area under the ROC curve, in [0, 1].
        log_loss: mean binary cross-entropy in nats.
        rows: number of scored rows.
    """

    auc: float
    log_loss: float
    rows: int


class Predictor:
    """Predicts click probabilities on the device, batch by batch."""

    def __init__(self, model: Any, data: Data) -> None:
        from cowclip_merlin import compat, models

        tf = compat.tensorflow()
        self._data = data

        @tf.function(input_signature=[data.signature])
        def score(batch: Any) -> Any:
            inputs, _ = data.unpack(batch)
            return models.logits(model, inputs, training=False)[:, 0]

        self._score = score

    def predict(self) -> npt.NDArray[np.float64]:
        """Return the click probability of every row, in file order, [n]."""
        logits = np.empty(self._data.rows, np.float64)
        for i, batch in enumerate(self._data.batches_in_file_order(PREDICTION_BATCH_SIZE)):
            logits[i * PREDICTION_BATCH_SIZE : (i + 1) * PREDICTION_BATCH_SIZE] = self._score(
                batch
            ).numpy()
        # In float64, so that large logits do not tie at 1.
        return _sigmoid(logits)


def _sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def evaluate(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> Evaluation:
    """Compute exact metrics of probabilities [n] against labels [n].

    >>> evaluate([0, 1], [0.25, 0.75]).auc
    1.0
    """
    return Evaluation(
        auc=metrics.roc_auc(labels, probabilities),
        log_loss=metrics.log_loss(labels, probabilities),
        rows=int(np.size(labels)),
    )


def write_predictions(
    path: Path, labels: npt.NDArray[Any], probabilities: npt.NDArray[np.float64]
) -> None:
    """Write a parquet file with columns row, label, probability, in one atomic step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "row": np.arange(len(labels)),
            "label": labels.astype(np.int8),
            "probability": probabilities,
        }
    )
    with atomic_write(path) as temporary:
        pq.write_table(table, temporary)
