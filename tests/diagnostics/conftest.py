import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.bench import throughput
from cowclip_merlin.loading import DeviceData

FIELDS = {"a": 7, "b": 5, "c": 11}


@pytest.fixture(scope="session")
def fields():
    return FIELDS


@pytest.fixture(scope="session")
def small_model():
    """A DeepFM on three small fields, every weight random, and random rows for it."""

    def build(tables="fused", **architecture):
        model = throughput.random_model("deepfm", FIELDS, mlp=(8,), tables=tables, **architecture)
        rng = np.random.default_rng(1)
        for variable in model.trainable_variables:
            variable.assign(rng.normal(0, 0.3, variable.shape))
        return model

    return build


@pytest.fixture(scope="session")
def small_rows():
    return throughput.random_rows(64, FIELDS, seed=2)


@pytest.fixture(scope="session")
def small_data(small_rows):
    return DeviceData(small_rows)


@pytest.fixture(scope="session")
def cowclip():
    def build(**settings):
        adam = compat.tensorflow().keras.optimizers.legacy.Adam
        given = {"l2": 1e-2, "zeta": 1e-3, "fields": FIELDS, "embeddings": ["embeddings"]}
        return cc.CowClip(adam(1e-3), adam(1e-3), **(given | settings))

    return build
