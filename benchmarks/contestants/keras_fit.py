"""Train with `model.fit`, for the two packages on Keras, as their users do."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from contestants.job import SCORING_BATCH, Clock, Job, Rows, report


class _Ticking(tf.keras.callbacks.Callback):
    """Report every step to a clock."""

    def __init__(self, clock: Clock, rows: int, batch: int) -> None:
        super().__init__()
        self.clock, self.rows, self.batch = clock, rows, batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a step; the last step of an epoch may have fewer rows."""
        self.clock.tick(min(self.batch, self.rows - batch * self.batch))


def fit_and_report(model: Any, rows: tuple[Rows, Rows], job: Job, **versions: str) -> None:
    """Train a compiled model that takes columns by name, score the held-out rows, and report."""
    (train, test), clock = rows, Clock()
    model.fit(
        train.columns(),
        train.label,
        batch_size=job.batch,
        epochs=job.epochs,
        verbose=0,
        callbacks=[_Ticking(clock, len(train.label), job.batch)],
    )
    rate = clock.rate()
    scores = model.predict(test.columns(), batch_size=SCORING_BATCH, verbose=0)
    report(job, scores, rate, tensorflow=tf.__version__, numpy=np.__version__, **versions)
