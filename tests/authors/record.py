"""Records what the paper's authors' clip does, for `test_authors.py` to reproduce.

    git clone https://github.com/bytedance/LargeBatchCTR
    python3.8 -m venv authors
    authors/bin/pip install tensorflow-cpu==2.4.4 numpy==1.19.5 protobuf==3.19.6
    authors/bin/python tests/authors/record.py LargeBatchCTR

Their `clip.py` is imported and called on random inputs; what goes in and comes out is written to
vectors.npz beside this file. Recorded are single calls, and 20 training steps of a small model in
which their clip sits between the gradient and Keras's Adam, as in their train.py: on one device,
and on two replicas.
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
    position = 0
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
                    record[f"call{position}_{name}"] = value
                position += 1
    record["calls"] = position


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


def replicas(cow_clip, rng, record, r):
    """The same on two replicas, half of each batch on either: each clips by itself."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        table = tf.Variable(rng.normal(0, 1e-2, (ROWS, DIM)).astype(np.float32))
        adam = tf.keras.optimizers.Adam(RATE)
    direction = rng.normal(0, 1, DIM).astype(np.float32)
    ids = np.minimum(rng.pareto(0.5, (STEPS, BATCH)), ROWS - 1).astype(np.int32)
    label = (rng.random((STEPS, BATCH)) < 0.4).astype(np.float32)

    def step(ids, label):
        half = tf.distribute.get_replica_context().replica_id_in_sync_group * (BATCH // 2)
        ids, label = ids[half : half + BATCH // 2], label[half : half + BATCH // 2]
        with tf.GradientTape() as tape:
            z = tf.linalg.matvec(tf.gather(table, ids), direction) * 50
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, z))
            loss = (loss + L2 * tf.reduce_sum(tf.square(table))) / 2  # as Keras's fit divides it
        g = tf.convert_to_tensor(tape.gradient(loss, table))
        unique, counts = occurrences(ids)
        bound = r * math.sqrt(DIM) * ZETA
        w = tf.convert_to_tensor(table)
        g = cow_clip(w, g, ratio=r, ids=unique, cnts=counts, min_w=bound)
        adam.apply_gradients([(g, table)])

    tables = [table.numpy()]
    for position in range(STEPS):
        strategy.run(step, (tf.constant(ids[position]), tf.constant(label[position])))
        tables.append(table.numpy())
    names = ("tables", "direction", "ids", "label")
    for name, value in zip(names, (np.stack(tables), direction, ids, label)):
        record[f"replicas_{name}"] = value


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    sys.path.insert(0, sys.argv[1])
    from clip import cow_clip

    rng, record = np.random.default_rng(0), {}
    single_calls(cow_clip, rng, record)
    training(cow_clip, rng, record, 1.0)
    training(cow_clip, rng, record, 0.1)
    replicas(cow_clip, rng, record, 0.1)
    record["settings"] = np.array([RATE, L2, ZETA])
    np.savez_compressed(Path(__file__).parent / "vectors.npz", **record)
    print("TensorFlow", tf.__version__, "NumPy", np.__version__, len(record), "arrays")


if __name__ == "__main__":
    main()
