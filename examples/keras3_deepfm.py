"""Train DeepFM in Keras 3 on a folder of `cowclip prepare`, with CowClip.

    python examples/keras3_deepfm.py DATA --epochs 3

It needs TensorFlow, Keras 3, NumPy and numba, and neither tf-keras nor Merlin nor pandas. The first
run on a folder also needs PyArrow, unless `cowclip train` has read the folder before. Small rates
are of batch 1024; `--rule` scales them to `--batch-size`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
from prepared_deepfm import DIM, HIDDEN, SCORED_AT_ONCE, main, open_folder, print_epoch

from cowclip_merlin import Hyperparameters
from cowclip_merlin.keras3 import CowClip, Embedding


def deepfm(cardinalities: Sequence[int], continuous: int, init_std: float) -> keras.Model:
    """Return a DeepFM (Guo et al., arXiv 1703.04247) that computes logits.

    Args:
        cardinalities: rows of the embedding table of each field.
        continuous: number of continuous columns; the hidden layers read them.
        init_std: standard deviation of the initial embeddings.
    """
    layers, sums = keras.layers, keras.ops.sum
    rows, starts = sum(cardinalities), np.cumsum([0, *cardinalities])[:-1].astype("int32")
    ids = keras.Input((len(cardinalities),), dtype="int32", name="ids")
    x = keras.Input((continuous,), name="x")
    of_field = ids + starts  # all fields share a table
    normal = keras.initializers.RandomNormal(stddev=init_std)
    v = Embedding(rows, DIM, embeddings_initializer=normal)(of_field)
    wide = Embedding(rows, 1, embeddings_initializer="zeros")(of_field)
    pairs = sums(sums(v, axis=1) ** 2 - sums(v**2, axis=1), axis=1, keepdims=True) / 2
    deep = layers.Concatenate()([layers.Flatten()(v), x])
    for width in HIDDEN:
        deep = layers.Dense(width, "relu", kernel_initializer="he_normal")(deep)
    deep = layers.Dense(1, kernel_initializer="he_normal")(deep)
    return keras.Model([ids, x], sums(wide, axis=1) + pairs + deep)


def train(path: Path, values: Hyperparameters, *, epochs: int, update: str, seed: int) -> None:
    """Train, and print a line for each epoch."""
    cardinalities, rows, test = open_folder(path)
    keras.utils.set_random_seed(seed)
    model = deepfm(cardinalities, rows.continuous.shape[1], values.init_std)
    steps = -(-len(rows.label) // values.batch_size)
    dense_lr: float | keras.optimizers.schedules.LearningRateSchedule = values.dense_lr
    if values.warmup_epochs:
        warm_up = round(values.warmup_epochs * steps)
        dense_lr = keras.optimizers.schedules.PolynomialDecay(0.0, warm_up, values.dense_lr)
    optimizer = CowClip.of(values, dense_lr=dense_lr, update=update)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))

    def score(epoch: int, logs: dict[str, float]) -> None:
        inputs = [test.ids, test.continuous]
        logits = model.predict(inputs, batch_size=SCORED_AT_ONCE, verbose=0)[:, 0]
        print_epoch(epoch + 1, logs["loss"], test.label, logits)

    scored = keras.callbacks.LambdaCallback(on_epoch_end=score)
    inputs, size = [rows.ids, rows.continuous], values.batch_size
    model.fit(inputs, rows.label, batch_size=size, epochs=epochs, callbacks=[scored], verbose=0)


if __name__ == "__main__":
    sys.exit(main("keras3_deepfm", __doc__.splitlines()[0], train, None))
