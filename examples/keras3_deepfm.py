"""Train DeepFM in Keras 3 on a folder of `cowclip prepare`, with CowClip.

    python examples/keras3_deepfm.py DATA --epochs 3

It needs TensorFlow, Keras 3, NumPy and numba, and neither tf-keras nor Merlin nor pandas. The first
run on a folder also needs PyArrow, unless `cowclip train` has read the folder before. Small rates
are of batch 1024; `--rule` scales them to `--batch-size`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras

from cowclip_merlin import Hyperparameters, InputError, log_loss, roc_auc, scale
from cowclip_merlin.choices import UPDATES
from cowclip_merlin.errors import exit_code
from cowclip_merlin.keras3 import CowClip, Embedding
from cowclip_merlin.loading import ColumnArrays, open_columns
from cowclip_merlin.scaling import RULES
from cowclip_merlin.targets import only_clicks
from cowclip_merlin.workflows import PreparedData

DIM, HIDDEN, SCORED_AT_ONCE = 10, (400, 400, 400), 8192


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


def open_folder(path: Path) -> tuple[PreparedData, ColumnArrays, ColumnArrays]:
    """Open the train and test rows of a prepared folder.

    Raises:
        InputError: the folder is none, or has columns that this model does not read.
    """
    data = PreparedData.load(path)
    log = data.log_format
    if log.multi or log.weight or log.vectors or not only_clicks(data.targets):
        raise InputError(
            f"{path}: has lists, vectors, weights, or other labels than one of clicks; this "
            "example reads none of them, so prepare the log without"
        )
    train, test = (open_columns(data, split) for split in ("train", "test"))
    return data, train, test


def train(path: Path, values: Hyperparameters, *, epochs: int, update: str, seed: int) -> float:
    """Train, print a line for each epoch, and return the last test AUC."""
    data, rows, test = open_folder(path)
    keras.utils.set_random_seed(seed)
    columns = rows.continuous.shape[1]
    model = deepfm(list(data.cardinalities.values()), columns, values.init_std)
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
        found = 1 / (1 + np.exp(-logits.astype(np.float64)))
        logs["auc"] = roc_auc(test.label, found)
        print(
            f"epoch {epoch + 1}: train loss {logs['loss']:.5f}, test AUC {logs['auc']:.5f}, "
            f"log loss {log_loss(test.label, found):.5f}",
            flush=True,
        )

    scored = keras.callbacks.LambdaCallback(on_epoch_end=score)
    inputs, size = [rows.ids, rows.continuous], values.batch_size
    fitted = model.fit(
        inputs, rows.label, batch_size=size, epochs=epochs, callbacks=[scored], verbose=0
    )
    return fitted.history["auc"][-1]


def main(argv: Sequence[str] | None = None) -> int:
    """Train; return 2 if the input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of cowclip prepare")
    parser.add_argument("--batch-size", type=int, default=1024, metavar="N")
    parser.add_argument("--epochs", type=int, default=3, metavar="N")
    parser.add_argument("--rule", choices=tuple(RULES), default="sde", help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=1e-3, metavar="X", help="both rates")
    parser.add_argument("--l2", type=float, default=1e-5, metavar="X", help="of the tables")
    parser.add_argument("--update", choices=UPDATES, default="exact")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    args = parser.parse_args(argv)

    def run() -> None:
        if args.epochs < 1:
            raise InputError(f"--epochs {args.epochs}: give 1 or more")
        small = Hyperparameters(batch_size=1024, embedding_lr=args.lr, dense_lr=args.lr, l2=args.l2)
        values = scale(small, to=args.batch_size, rule=args.rule)
        train(args.data, values, epochs=args.epochs, update=args.update, seed=args.seed)

    return exit_code("keras3_deepfm", run)


if __name__ == "__main__":
    sys.exit(main())
