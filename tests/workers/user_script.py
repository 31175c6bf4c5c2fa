"""In a worker: a script of one's own, with `compile` and `fit` of Merlin.

Writes OUT/RANK.npz: the weights, and the losses of the epochs.
"""

from pathlib import Path

import numpy as np

import cowclip_merlin as cc

workers = cc.workers.join()

from cowclip_merlin import compat  # noqa: E402

tf = compat.tensorflow()
FIELDS, ROWS, BATCH = {"a": 40, "b": 90, "c": 7}, 24 * 24, 24


def schema():
    compat.merlin_models()
    from merlin.schema import ColumnSchema, Schema, Tags

    columns = [
        ColumnSchema(
            name,
            dtype=np.int32,
            tags=[Tags.CATEGORICAL],
            properties={"domain": {"min": 0, "max": rows - 1, "name": name}},
        )
        for name, rows in FIELDS.items()
    ]
    click = ColumnSchema("click", dtype=np.int8, tags=[Tags.TARGET, Tags.BINARY_CLASSIFICATION])
    return Schema([*columns, click])


def own_batches():
    """This worker's rows of each batch of 24."""
    rng = np.random.default_rng(1)
    ids = {name: rng.integers(0, size, [ROWS, 1]) for name, size in FIELDS.items()}
    data = tf.data.Dataset.from_tensor_slices((ids, (ids["a"] + ids["b"] < 40).astype("f")))
    own = BATCH // (workers.size if workers else 1)
    batches = data.batch(own)
    return batches.shard(workers.size, workers.rank) if workers else batches


def main(out):
    tf.keras.utils.set_random_seed(2)
    model = cc.models.deepfm(schema(), embedding_dim=4, mlp=(8, 6), seed=3, init_std=0.05)
    adagrad = tf.keras.optimizers.legacy.Adagrad
    optimizer = cc.CowClip(adagrad(0.02), adagrad(0.02), r=0.003, l2=1e-4, update="lazy")
    model.compile(optimizer, "binary_crossentropy")
    history = model.fit(own_batches(), epochs=3, verbose=0).history
    weights = {f"weight {i}": v.numpy() for i, v in enumerate(model.trainable_variables)}
    found = {"losses": history["loss"], "clipped": optimizer.clipped_share.numpy()}
    np.savez(Path(out) / f"{workers.rank if workers else 0}.npz", **weights, **found)
