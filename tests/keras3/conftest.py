"""Models of Keras 3 with tables, and batches of skewed ids."""

import os
from importlib.util import find_spec

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
ROWS, DIM, FIELDS = 60, 3, 4


@pytest.fixture(scope="session")
def keras():
    if find_spec("tf_keras"):
        pytest.skip("these tests run where Keras 3 is the only Keras")
    return pytest.importorskip("keras")


@pytest.fixture(scope="session")
def tf(keras):
    return pytest.importorskip("tensorflow")


@pytest.fixture
def cowclip(keras):
    from cowclip_merlin.keras3 import CowClip

    return CowClip


@pytest.fixture
def model_of(keras):
    """`model_of(optimizer)`: a table, a dense layer on its rows, a loss; compiled."""
    from cowclip_merlin.keras3 import Embedding

    def make(optimizer, *, kind=Embedding, rows=ROWS, dim=DIM, fields=FIELDS, l2=None, **how):
        keras.utils.set_random_seed(1)
        penalty = keras.regularizers.L2(l2) if l2 else None
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((fields,), dtype="int32"),
                kind(rows, dim, embeddings_regularizer=penalty),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True), **how)
        return model

    return make


@pytest.fixture
def batches():
    """`batches(n)`: ids [8 * n, 4], few of them frequent, and labels [8 * n, 1]."""

    def make(n, *, size=8, seed=0, rows=ROWS, fields=FIELDS):
        rng = np.random.default_rng(seed)
        ids = np.minimum(rng.zipf(1.4, (n * size, fields)) - 1, rows - 1)
        return ids.astype("int32"), (rng.random((n * size, 1)) < 0.3).astype("float32")

    return make


@pytest.fixture
def train():
    """Make a step for each batch."""

    def run(model, batches, size=8, **how):
        how = {"epochs": 1, "verbose": 0, "shuffle": False, **how}
        model.fit(*batches, batch_size=size, **how)

    return run


@pytest.fixture
def trained(cowclip, model_of, batches, train):
    """`trained(update)`: a model after some steps."""

    def make(update="exact", steps=30, **more):
        model = model_of(cowclip(1e-2, l2=1e-3, update=update, **more))
        train(model, batches(steps))
        return model

    return make
