"""Small models for the tests of `update="exact"`, and clicks to fit them."""

import numpy as np

import cowclip_merlin as cc
from cowclip_merlin.models import MODELS

SMALL = {"embedding_dim": 4, "mlp": (8, 6), "seed": 3, "init_std": 0.05}


def clicks(tf, rows=320):
    rng = np.random.default_rng(1)
    fields = {"a": 7, "b": 5, "c": 11}
    values = {name: rng.integers(0, size, [rows, 1]) for name, size in fields.items()}
    values |= {name: rng.random([rows, 1]).astype("f") for name in ("x", "y")}
    label = (values["a"] < 3).astype("f")
    # Few rows a batch, so that most rows of the tables are absent from it.
    return tf.data.Dataset.from_tensor_slices((values, label)).batch(4)


def fitted(
    tf, schema, name, update, epochs=2, tables="fused", rows=320, validated=False, **arguments
):
    model = MODELS[name](schema, tables=tables, **SMALL)
    adam = tf.keras.optimizers.legacy.Adam
    optimizer = cc.CowClip(adam(1e-2), adam(1e-3), l2=1e-2, update=update)
    model.compile(optimizer, "binary_crossentropy", **arguments)
    validation = {"validation_data": clicks(tf, 40)} if validated else {}
    model.fit(clicks(tf, rows), epochs=epochs, verbose=0, **validation)
    return model


def tables_of(model):
    return [v for v in model.trainable_variables if "embeddings" in v.name]
