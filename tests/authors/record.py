"""Records what the paper's authors' clip does, for `test_authors.py` to reproduce.

    git clone https://github.com/bytedance/LargeBatchCTR
    python3.8 -m venv authors
    authors/bin/pip install tensorflow-cpu==2.4.4 numpy==1.19.5 protobuf==3.19.6
    authors/bin/python tests/authors/record.py LargeBatchCTR

Their `clip.py` is imported and called on random inputs; what goes in and comes out is written to
vectors.npz beside this file. Two things are recorded: single calls, and 20 training steps of a
small model in which their clip sits between the gradient and Keras's Adam, as in their train.py.
"""

import math
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

SIZES = [(1, 1), (7, 3), (30, 10), (12, 16)]  # rows, dim
ROWS, DIM, BATCH, STEPS = 40, 10, 24, 20
RATE, L2, ZETA = 1e-2, 1e-3, 1e-3


def occurrences(ids):
    unique, _, counts = tf.unique_with_counts(ids)
    return unique, counts


def single_calls(cow_clip, rng, record):
    """Calls with r = 1 and r = 10; their bound is r * sqrt(d) * zeta, and r comes in again."""
    place = 0
    for rows, dim in SIZES:
        for r in (1.0, 10.0):
            for scale in (1e-3, 1.0):
                w = rng.normal(0, 1e-2, (rows, dim)).astype(np.float32)
                g = rng.normal(0, scale, (rows, dim)).astype(np.float32)
                g[rng.random(rows) < 0.2] = 0
                ids = rng.integers(0, rows, 2 * rows).astype(np.int32)
                unique, counts = occurrences(ids)
                bound = r * math.sqrt(dim) * ZETA
                out = cow_clip(
                    tf.constant(w), tf.constant(g), ratio=r, ids=unique, cnts=counts, min_w=bound
                )
                names = ("w", "g", "ids", "r", "clipped")
                for name, value in zip(names, (w, g, ids, r, out.numpy())):
                    record[f"call{place}_{name}"] = value
                place += 1
    record["calls"] = place


def training(cow_clip, rng, record, r):
    """A logistic model on one table, penalty in the loss, their clip, Keras's Adam."""
    table = tf.Variable(rng.normal(0, 1e-2, (ROWS, DIM)).astype(np.float32))
    direction = rng.normal(0, 1, DIM).astype(np.float32)
    ids = np.minimum(rng.pareto(0.5, (STEPS, BATCH)), ROWS - 1).astype(np.int32)
    label = (rng.random((STEPS, BATCH)) < 0.4).astype(np.float32)
    adam, tables = tf.keras.optimizers.Adam(RATE), [table.numpy()]
    for step in range(STEPS):
        with tf.GradientTape() as tape:
            z = tf.linalg.matvec(tf.gather(table, ids[step]), direction) * 50
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label[step], z))
            loss += L2 * tf.reduce_sum(tf.square(table))
        g = tf.convert_to_tensor(tape.gradient(loss, table))
        unique, counts = occurrences(ids[step])
        bound = r * math.sqrt(DIM) * ZETA
        g = cow_clip(table, g, ratio=r, ids=unique, cnts=counts, min_w=bound)
        adam.apply_gradients([(g, table)])
        tables.append(table.numpy())
    names = ("tables", "direction", "ids", "label")
    for name, value in zip(names, (np.stack(tables), direction, ids, label)):
        record[f"train{r:g}_{name}"] = value


def main():
    sys.path.insert(0, sys.argv[1])
    from clip import cow_clip

    rng, record = np.random.default_rng(0), {}
    single_calls(cow_clip, rng, record)
    training(cow_clip, rng, record, 1.0)
    training(cow_clip, rng, record, 0.1)
    record["settings"] = np.array([RATE, L2, ZETA])
    np.savez_compressed(Path(__file__).parent / "vectors.npz", **record)
    print("TensorFlow", tf.__version__, "NumPy", np.__version__, len(record), "arrays")


if __name__ == "__main__":
    main()
