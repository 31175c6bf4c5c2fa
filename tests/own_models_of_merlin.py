"""Merlin's own models in `fit` with CowClip, by the two lines of the README.

python tests/own_models_of_merlin.py
"""

import sys
from itertools import cycle

import cowclip_merlin as cc  # isort: skip, before Merlin, as the README asks
import merlin.models.tf as mm
import numpy as np
import tensorflow as tf
from merlin.models.tf.models.benchmark import NCFModel
from merlin.schema import ColumnSchema, Schema, Tags

FIELDS = {"user": 40, "item": 60, "shop": 9}
MORE_TAGS = {"user": [Tags.USER_ID, Tags.USER], "item": [Tags.ITEM_ID, Tags.ITEM]}
ROWS, BATCH, EPOCHS = 640, 32, 8


def schema():
    ids = [
        ColumnSchema(
            name,
            dtype=np.int64,
            tags=[Tags.CATEGORICAL, *MORE_TAGS.get(name, [])],
            properties={"domain": {"min": 0, "max": size - 1, "name": name}},
        )
        for name, size in FIELDS.items()
    ]
    x = ColumnSchema("x", dtype=np.float32, tags=[Tags.CONTINUOUS])
    target = ColumnSchema("click", dtype=np.int64, tags=[Tags.TARGET, Tags.BINARY_CLASSIFICATION])
    return Schema([*ids, x, target])


def clicks(columns):
    rng = np.random.default_rng(0)
    batch = {name: rng.integers(0, size, [ROWS, 1]) for name, size in FIELDS.items()}
    batch["x"] = rng.random([ROWS, 1]).astype("f")
    label = (batch["user"] % 2).astype("f")
    batch = {name: batch[name] for name in columns.column_names if name in batch}
    return tf.data.Dataset.from_tensor_slices((batch, label)).batch(BATCH)


def mlp(*widths):
    return mm.MLPBlock(list(widths))


def dlrm(columns, output):
    return mm.DLRMModel(
        columns, embedding_dim=8, bottom_block=mlp(8), top_block=mlp(16), prediction_tasks=output
    )


def dcn(columns, output):
    return mm.DCNModel(columns, depth=2, deep_block=mlp(16), prediction_tasks=output)


def ncf(columns, output):
    return NCFModel(columns, embedding_dim=8, mlp_block=mlp(16), prediction_tasks=output)


def wide_and_deep(columns, output):
    wide = columns.select_by_name(["shop"])
    return mm.WideAndDeepModel(
        columns,
        deep_block=mlp(16),
        wide_schema=wide,
        wide_preprocess=mm.CategoryEncoding(wide, output_mode="one_hot", sparse=True),
        prediction_tasks=output,
    )


def deepfm(columns, output):
    return mm.DeepFMModel(columns, embedding_dim=8, deep_block=mlp(16), prediction_tasks=output)


OF_FIELDS = [(9, 8), (40, 8), (60, 8)]
# Builder, and the tables: the wide kernel of one-hot columns has a sparse gradient, too.
MODELS = {
    "DLRM": (dlrm, OF_FIELDS),
    "DCN": (dcn, OF_FIELDS),
    "NCF": (ncf, [(40, 8), (40, 8), (60, 8), (60, 8)]),
    "Wide&Deep": (wide_and_deep, [(9, 1), *OF_FIELDS]),
    "DeepFM": (deepfm, [*OF_FIELDS, (110, 1)]),
}


def columns_of(name):
    return schema().select_by_name(["user", "item", "click"]) if name == "NCF" else schema()


def fit(name, update):
    """The model, losses of the epochs, and the shapes of the tables that CowClip had."""
    tf.keras.utils.set_random_seed(1)
    columns = columns_of(name)
    model = MODELS[name][0](columns, mm.BinaryOutput("click"))
    adam = tf.keras.optimizers.legacy.Adam
    optimizer = cc.CowClip(adam(3e-2), adam(3e-3), l2=1e-5, update=update)
    model.compile(optimizer=optimizer, loss="binary_crossentropy")
    losses = model.fit(clicks(columns), epochs=EPOCHS, verbose=0).history["loss"]
    moments = optimizer.embedding_optimizer.weights[1:]  # all first ones, then all second ones
    return model, losses, sorted(tuple(v.shape) for v in moments[: len(moments) // 2])


def refuses_exact(name):
    """Nothing tells these models to bring rows up to date before they read them."""
    try:
        fit(name, "exact")
    except cc.InputError as error:
        return 'update="dense" or "lazy"' in str(error)
    return False


def import_keras_3():
    """The user's `keras` is the installed one, and later imports of Merlin's modules work."""
    assert "keras" not in sys.modules
    import keras
    import merlin.models.tf.utils.testing_utils as utils  # the import above leaves it out

    assert keras.__version__ >= "3" and utils.tf_inspect is not None


if __name__ == "__main__":
    for update, (name, (_, expected)) in zip(cycle(("dense", "lazy")), MODELS.items()):
        _, losses, tables = fit(name, update)
        assert losses[-1] < 0.1 * losses[0], (name, update, losses)
        assert tables == expected, (name, update, tables)
    assert refuses_exact("DLRM")
    print("Merlin's own models trained:", ", ".join(MODELS))
    if tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 16):  # else `keras` is Keras 2
        import_keras_3()
