"""Train with `model.fit`, for the two packages on Keras, as their users do."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from contestants.job import SCORING_BATCH, Clock, Job, by_name


class _Ticking(tf.keras.callbacks.Callback):
    """Report every step to a clock."""

    def __init__(self, clock: Clock, *, rows: int, batch: int) -> None:
        super().__init__()
        self.clock, self.rows, self.batch = clock, rows, batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a step; the last step of an epoch may have fewer rows."""
        self.clock.tick(min(self.batch, self.rows - batch * self.batch))


def fit(model: Any, rows: Any, job: Job) -> float:
    """Train a compiled model that takes columns by name; return rows per second."""
    label, clock = rows["label"], Clock()
    model.fit(
        by_name(rows["ids"], rows["continuous"]),
        label,
        batch_size=job.batch,
        epochs=job.epochs,
        verbose=0,
        callbacks=[_Ticking(clock, rows=len(label), batch=job.batch)],
    )
    return clock.rate()


def score(model: Any, rows: Any) -> np.ndarray:
    """Return the click probabilities of the held-out rows."""
    columns = by_name(rows["test_ids"], rows["test_continuous"])
    return model.predict(columns, batch_size=SCORING_BATCH, verbose=0)
