"""Make equal batches for tables of any size, and train a model on a table of one size."""

from __future__ import annotations

import time
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.bench.random_data import criteo_fields, random_model, random_rows
from cowclip_merlin.loading import ColumnArrays, DeviceData
from step_parts.vocabulary_settings import VocabularySettings

if TYPE_CHECKING:
    from cowclip_merlin.optimizer import CowClip

POOL = 32  # batches of the largest size before rows repeat


def draw(settings: VocabularySettings) -> ColumnArrays:
    """Draw rows with power-law ids for the smallest vocabulary."""
    return random_rows(POOL * max(settings.batches), criteo_fields(settings.vocabularies[0]))


def spread(rows: ColumnArrays, fields: dict[str, int]) -> ColumnArrays:
    """Map the ids of the rows one to one to ids spread over larger fields.

    >>> ids = np.arange(4, dtype=np.int32)[:, None]
    >>> spread(ColumnArrays(ids, ids, ids), {"C1": 10}).ids[:, 0].tolist()
    [0, 7, 4, 1]
    """
    mapped = np.empty_like(rows.ids)
    for column, size in enumerate(fields.values()):
        mapped[:, column] = rows.ids[:, column].astype(np.int64) * multiplier(size) % size
    return replace(rows, ids=mapped)


def multiplier(size: int) -> int:
    """Return a number m coprime to the size, so that i * m % size is one to one."""
    # Near the golden ratio, neighbors are spread far apart and evenly.
    number = max(1, round(0.618034 * size))
    while gcd(number, size) > 1:
        number += 1
    return number


def distinct_rows(rows: ColumnArrays, fields: dict[str, int], batch: int) -> float:
    """Return the mean number of table rows that a batch reads."""
    offsets = np.cumsum([0, *fields.values()])[:-1]
    batches = [rows.ids[i * batch : (i + 1) * batch] + offsets for i in range(min(8, POOL))]
    return float(np.mean([len(np.unique(ids)) for ids in batches]))


class TrainedModel:
    """A model with its optimizer, which trains on batches of the rows.

    Args:
        settings: settings of the measurement.
        update: "dense", "exact" or "lazy".
        vocabulary: ids of all fields.
        rows: result of `draw`.
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


def _optimizer(update: str) -> CowClip:
    from cowclip_merlin.optimizer import CowClip
    from cowclip_merlin.scaling import scale

    values = replace(scale("criteo", to=8192), warmup_epochs=0)
    return CowClip.of(values, update=update, embeddings=["embeddings"])
