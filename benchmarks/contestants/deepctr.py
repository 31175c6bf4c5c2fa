"""DeepCTR's DeepFM, for `peers.py`: the package's model, plain Keras Adam, `model.fit`."""

from __future__ import annotations

import argparse

import deepctr
import tensorflow as tf
from deepctr.feature_column import DenseFeat, SparseFeat
from deepctr.models import DeepFM

from contestants.job import read_job, read_rows
from contestants.keras_fit import fit_and_report


def main() -> None:
    """Train once, without penalties, with which every step would update whole tables."""
    job, _ = read_job(argparse.ArgumentParser(description=__doc__))
    tf.random.set_seed(job.seed)
    rows, test = read_rows(job.rows_file)
    initial = tf.keras.initializers.RandomNormal(stddev=job.init_std, seed=job.seed)
    names, numbers = rows.names()
    ids = [
        SparseFeat(name, size, embedding_dim=job.embedding_dim, embeddings_initializer=initial)
        for name, size in zip(names, rows.field_rows.tolist())
    ]
    model = DeepFM(
        ids,
        ids + [DenseFeat(name, 1) for name in numbers],
        dnn_hidden_units=job.widths,
        l2_reg_linear=0,
        l2_reg_embedding=0,
        seed=job.seed,
    )
    model.compile(tf.keras.optimizers.Adam(job.lr), "binary_crossentropy")
    fit_and_report(model, (rows, test), job, deepctr=deepctr.__version__)


if __name__ == "__main__":
    main()
