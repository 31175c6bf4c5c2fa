"""Small models with growing tables, their optimizer, batches and steps."""

import numpy as np

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.models import MODELS, growing_schema

FIELDS, IDS, ROWS, CAPACITY = ("a", "b", "c"), 40, 32, 400
SMALL = {"embedding_dim": 4, "mlp": (8,), "seed": 3, "init_std": 0.1}


def schema():
    return growing_schema(categorical=FIELDS, continuous=["x"], label="click")


def growing(model="deepfm", capacity=CAPACITY, **more):
    return MODELS[model](schema(), tables="growing", capacity=capacity, **(SMALL | more))


def cowclip(*, inner=None, **more):
    legacy = compat.tensorflow().keras.optimizers.legacy
    adam = [legacy.Adam(0.01) for _ in range(2)]
    if inner is not None:
        kinds = {"rowwise": cc.RowWiseAdagrad, "adagrad": legacy.Adagrad}
        adam[0] = kinds[inner](0.01, initial_accumulator_value=0.25)
    return cc.CowClip(*adam, **({"update": "lazy", "l2": 1e-4} | more))


def batches(steps):
    """Numbers of ids [b, F], x and labels: each batch may have ids that none had before."""
    rng = np.random.default_rng(5)
    for step in range(steps):
        ids = rng.integers(0, min(IDS, 1 + 2 * IDS * step // steps), [ROWS, len(FIELDS)])
        x, label = rng.random([ROWS, 1], np.float32), rng.random([ROWS, 1]) < 0.3
        yield ids, x, label.astype(np.float32)


def raw(ids):
    """64-bit ids, the same numbers in every field."""
    return (ids - 7) * 2**40


def trainer(tf, model, optimizer):
    """A step that returns probabilities before it, and the loss."""
    model.compile(optimizer, "binary_crossentropy")

    @tf.function
    def train(rows, x, label):
        with tf.GradientTape() as tape:
            p = model({"categorical": rows, "continuous": x}, training=True)
            loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(label, p))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return p, loss

    return train


def batch_of(rows):
    return {"categorical": rows, "continuous": np.zeros([len(rows), 1], np.float32)}
