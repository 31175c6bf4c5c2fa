"""DeepCTR's DeepFM, for `peers.py`: the package's model, plain Keras Adam, `model.fit`."""

from __future__ import annotations

import argparse
from typing import Any

import deepctr
import numpy as np
import tensorflow as tf
from deepctr.feature_column import DenseFeat, SparseFeat
from deepctr.models import DeepFM

from contestants.job import Job, names, read_job, report
from contestants.keras_fit import fit, score


def build(job: Job, rows: Any) -> Any:
    """Compile the model without penalties, with which every step would update whole tables."""
    initial = tf.keras.initializers.RandomNormal(stddev=job.init_std, seed=job.seed)
    field_rows = rows["field_rows"].tolist()
    ids = [
        SparseFeat(name, size, embedding_dim=job.embedding_dim, embeddings_initializer=initial)
        for name, size in zip(names(len(field_rows), "C"), field_rows)
    ]
    numbers = [DenseFeat(name, 1) for name in names(rows["continuous"].shape[1], "I")]
    model = DeepFM(
        ids,
        ids + numbers,
        dnn_hidden_units=job.widths,
        l2_reg_linear=0,
        l2_reg_embedding=0,
        seed=job.seed,
    )
    model.compile(tf.keras.optimizers.Adam(job.lr), "binary_crossentropy")
    return model


def main() -> None:
    """Train once."""
    job, _ = read_job(argparse.ArgumentParser(description=__doc__))
    tf.random.set_seed(job.seed)
    with np.load(job.rows_file) as rows:
        model = build(job, rows)
        rate = fit(model, rows, job)
        versions = {"deepctr": deepctr.__version__, "tensorflow": tf.__version__}
        report(job, score(model, rows), rate, versions)


if __name__ == "__main__":
    main()
