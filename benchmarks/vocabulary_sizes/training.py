"""Train a model on a table of one size, and find the free memory for it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.bench.random_data import criteo_fields, random_model
from cowclip_merlin.loading import ColumnArrays, DeviceData
from vocabulary_sizes.batches import spread
from vocabulary_sizes.settings import VocabularySettings


class TrainedModel:
    """A model with its optimizer, which trains on batches of the rows.

    Args:
        settings: settings of the measurement.
        update: "dense", "exact" or "lazy".
        vocabulary: ids of all fields.
        rows: result of `batches.draw`.
    """

    def __init__(
        self, settings: VocabularySettings, update: str, vocabulary: int, rows: ColumnArrays
    ) -> None:
        from cowclip_merlin.training.train_step import make_train_step

        fields, tf = criteo_fields(vocabulary), compat.tensorflow()
        self._update, self.made = update, 0
        self._rows = len(rows)
        self._loss = tf.Variable(0.0, dtype=tf.float64)
        model = random_model(
            settings.model, fields, embedding_dim=settings.embedding_dim, mlp=settings.mlp
        )
        self._optimizer = _optimizer(update)
        self._optimizer.create_state(model.trainable_variables)
        self.backend = self._optimizer.backend
        data = DeviceData(spread(rows, fields))
        self._run = make_train_step(model, self._optimizer, data, self._loss)

    def train(self, batch: int, steps: int, seconds: float = float("inf")) -> tuple[int, float]:
        """Train, and return steps and seconds; stop early after three steps if the time is up."""
        started = time.perf_counter()
        for step in range(1, steps + 1):
            first = self.made * batch
            self._run(np.arange(first, first + batch) % self._rows)
            self.made += 1
            self._loss.numpy()  # waits for the device
            spent = time.perf_counter() - started
            if spent > seconds and step >= 3:
                break
        return step, spent

    def flush(self) -> float:
        """Bring all rows up to date; return the seconds."""
        started = time.perf_counter()
        self._optimizer.flush()
        self._optimizer.iterations.numpy()
        return time.perf_counter() - started


def _optimizer(update: str) -> Any:
    from cowclip_merlin.optimizer import CowClip
    from cowclip_merlin.scaling import scale

    adam, values = compat.tensorflow().keras.optimizers.legacy.Adam, scale("criteo", to=8192)
    return CowClip(
        adam(values.embedding_lr),
        adam(values.dense_lr),
        l2=values.l2,
        update=update,
        embeddings=["embeddings"],
    )
