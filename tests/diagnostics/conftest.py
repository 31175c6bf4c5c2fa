import numpy as np
import pytest

from cowclip_merlin import compat
from cowclip_merlin.bench import throughput
from cowclip_merlin.loading import DeviceData
from cowclip_merlin.optimizer import CowClip

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
        return CowClip(adam(1e-3), adam(1e-3), **(given | settings))

    return build


@pytest.fixture(scope="session")
def same_weights():
    """Asserts that the last checkpoints of two runs are bit-equal, optimizer state included."""

    def tensors(folder):
        tf = compat.tensorflow()
        reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder / "checkpoints")))
        return {
            name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
            if "_CHECKPOINTABLE_OBJECT_GRAPH" not in name and "save_counter" not in name
        }

    def check(a, b, but=None):
        a, b = tensors(a), tensors(b)
        assert a.keys() == b.keys() and len(a) > 10
        for name in [name for name in a if but is None or but not in name]:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)

    return check
