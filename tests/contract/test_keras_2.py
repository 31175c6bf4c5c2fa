"""The contract, of `cc.CowClip`: with numba's kernels, and with operations of TensorFlow."""

import numpy as np
import pytest
from contract import Contract, Trained, lacks_on_a_gpu

pytest.importorskip("tf_keras")
tf = pytest.importorskip("tensorflow")

import cowclip_merlin as cc  # noqa: E402


class InKeras2(Trained):
    backend = "auto"

    def __init__(self, tables, dense, *, lr, betas=(0.9, 0.999), epsilon=1e-7, **settings):
        from cowclip_merlin import compat

        keras = compat.tensorflow().keras.optimizers

        class Rate(keras.schedules.LearningRateSchedule):
            def __call__(self, step):
                return tf.numpy_function(lambda t: np.float32(lr(int(t))), [step], tf.float32)

            def get_config(self):
                return {}

        rate = Rate() if callable(lr) else lr
        adam, other = (keras.legacy.Adam(rate, *betas, epsilon) for _ in range(2))
        self.optimizer = cc.CowClip(adam, other, **{"backend": self.backend, **settings})
        self.tables, self.weights = [tf.Variable(x) for x in tables], tf.Variable(dense)
        signature = [
            (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, d], tf.float32))
            for _, d in map(np.shape, tables)
        ]

        @tf.function(
            autograph=False, input_signature=[signature, tf.TensorSpec(dense.shape, tf.float32)]
        )
        def step(batches, gradient):
            pairs = [(gradient, self.weights)]
            for table, (ids, values) in zip(self.tables, batches):
                if settings.get("update") == "exact":
                    self.optimizer.catch_up(table, ids)
                pairs.append((tf.IndexedSlices(values, ids, table.shape), table))
            self.optimizer.apply_gradients(pairs)

        self._step = step

    def step(self, batches, dense):
        self._step([(tf.constant(i, tf.int64), tf.constant(g)) for i, g in batches], dense)

    def table(self, i):
        self.optimizer.flush()
        return self.tables[i].numpy()

    def dense(self):
        return self.weights.numpy()

    def _parts(self):
        self.optimizer.flush()
        return [*self.tables, self.weights, *self.optimizer.variables()]

    def state(self):
        return [x.numpy() for x in self._parts()]

    def restore(self, state):
        for variable, value in zip(self._parts(), state, strict=True):
            variable.assign(value)

    clipped_share = property(lambda self: float(self.optimizer.clipped_share))
    mean_clip_factor = property(lambda self: float(self.optimizer.mean_clip_factor))


class WithTensorFlow(InKeras2):
    backend = "tensorflow"


class TestKeras2(Contract):
    CHECKED = ("exact", "lazy")  # dense updates are Keras's

    def lacks(self, **settings):
        return bool(tf.config.list_logical_devices("GPU")) and lacks_on_a_gpu(**settings)

    @pytest.fixture(scope="class")
    def make(self):
        return InKeras2


class TestKeras2OfTensorFlow(Contract):
    CHECKED = ("exact",)

    @pytest.fixture(scope="class")
    def make(self):
        return WithTensorFlow
