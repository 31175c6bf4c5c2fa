"""The packages on Keras, for `peers.py`: DeepCTR's DeepFM, and the code of the paper's authors.

python -m contestants.on_keras deepctr JOB
python -m contestants.on_keras authors LargeBatchCTR JOB

DeepCTR trains with plain Keras Adam, without penalties, with which every step would update whole
tables. Of the authors' code are the model, the clip and the optimizers. Their logging, per-batch
AUC and distribution strategy are omitted, which only makes it faster.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from contestants.job import SCORING_BATCH, Clock, Job, Rows, read_job, read_rows, report


class _Ticking(tf.keras.callbacks.Callback):
    """Report every step to a clock."""

    def __init__(self, clock: Clock, rows: int, batch: int) -> None:
        super().__init__()
        self.clock, self.rows, self.batch = clock, rows, batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a step; the last step of an epoch may have fewer rows."""
        self.clock.tick(min(self.batch, self.rows - batch * self.batch))


def deepctr_model(job: Job, rows: Rows) -> Any:
    """Compile DeepCTR's DeepFM."""
    from deepctr.feature_column import DenseFeat, SparseFeat
    from deepctr.models import DeepFM

    initial = tf.keras.initializers.RandomNormal(stddev=job.init_std, seed=job.seed)
    names, numbers = rows.names()
    ids = [
        SparseFeat(name, size, embedding_dim=job.embedding_dim, embeddings_initializer=initial)
        for name, size in zip(names, rows.field_rows.tolist())
    ]
    columns = ids + [DenseFeat(name, 1) for name in numbers]
    given = {"dnn_hidden_units": job.widths, "l2_reg_linear": 0, "l2_reg_embedding": 0}
    model = DeepFM(ids, columns, seed=job.seed, **given)
    model.compile(tf.keras.optimizers.Adam(job.lr), "binary_crossentropy")
    return model


def authors_model(job: Job, rows: Rows, checkout: str) -> Any:
    """Compile their DeepFM with their step: an Adam for the embeddings, one for the rest."""
    os.chdir(checkout)
    sys.path.insert(0, checkout)
    import train

    options = {
        "seed": job.seed, "bs": job.batch, "epoch": job.epochs, "lr": job.lr, "l2": job.l2,
        "sparse_embed_dim": job.embedding_dim, "lr_embed": job.embedding_lr, "clip": job.r,
        "bound": job.zeta, "init_stddev": job.init_std, "log_freq": 10**9,
    }  # fmt: skip
    sys.argv = ["train.py", *(f"--{name}={value}" for name, value in options.items())]
    train.args = train.parseargs()
    ids, numbers = rows.names()
    largest = {name: np.array([size - 1]) for name, size in zip(ids, rows.field_rows.tolist())}
    _, deep, linear = train.get_feature_column(largest, ids, numbers)
    penalties = {"l2_reg_linear": job.l2, "l2_reg_embedding": job.l2}
    known = {"dnn_hidden_units": job.widths, "dnn_dropout": 0, "seed": job.seed, **penalties}
    model = train.DeepFM(linear, deep, keras_model=train.CustomModel, **known)
    warm_up = round(job.warmup_epochs * -(-len(rows.label) // job.batch))
    schedule = tf.keras.optimizers.schedules.PolynomialDecay
    rate = schedule(0.0, warm_up, job.lr, power=1) if warm_up else job.lr
    tables = [layer for layer in model.layers if "sparse_emb_" in layer.name]
    others = [layer for layer in model.layers if "sparse_emb_" not in layer.name]
    adam = tf.keras.optimizers.Adam
    both = [(adam(job.embedding_lr), tables), (adam(rate), others)]
    model.compile(train.tfa.optimizers.MultiOptimizer(both), "binary_crossentropy")
    return model


def main() -> None:
    """Train once with `model.fit` on columns by name, score the held-out rows, and report."""
    _, package, *checkout, text = sys.argv
    job = read_job(text)
    versions = {"tensorflow": tf.__version__, "numpy": np.__version__}
    tf.random.set_seed(job.seed)
    train, test = read_rows(job.rows_file)
    if package == "authors":
        model = authors_model(job, train, *checkout)
    else:
        import deepctr

        versions["deepctr"], model = deepctr.__version__, deepctr_model(job, train)
    clock = Clock()
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
    report(job, scores, rate, **versions)


if __name__ == "__main__":
    main()
