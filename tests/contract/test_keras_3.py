"""The contract, of `cowclip_merlin.keras3.CowClip`."""

import numpy as np
import pytest
from contract import Contract, Trained

pytestmark = [pytest.mark.system, pytest.mark.quick]
keras = pytest.importorskip("keras", minversion="3")

import tensorflow as tf  # noqa: E402

from cowclip_merlin import keras3  # noqa: E402


class InKeras3(Trained):
    def __init__(self, tables, dense, *, lr, betas=(0.9, 0.999), **settings):
        class Rate(keras.optimizers.schedules.LearningRateSchedule):
            def __call__(self, step):
                return tf.numpy_function(lambda t: np.float32(lr(int(t))), [step], tf.float32)

            def get_config(self):
                return {}

        own = {"beta_1": betas[0], "beta_2": betas[1], **settings}
        self.optimizer = keras3.CowClip(Rate() if callable(lr) else lr, **own)
        self.layers = [keras3.Embedding(*x.shape) for x in tables]
        for layer, x in zip(self.layers, tables):
            layer.build(())
            layer.set_weights([x])
        self.weights = keras.Variable(dense, name="dense")
        self.every = [layer._embeddings for layer in self.layers] + [self.weights]
        self.optimizer.build(self.every)

    def step(self, batches, dense):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.weights.value * dense)
            for layer, (ids, values) in zip(self.layers, batches):
                loss += tf.reduce_sum(layer(tf.constant(ids)) * values)
        gradients = tape.gradient(loss, [x.value for x in self.every])
        self.optimizer.apply(gradients, self.every)

    def table(self, i):
        return self.layers[i].get_weights()[0]

    def dense(self):
        return self.weights.numpy()

    def state(self):
        weights = [self.table(i) for i in range(len(self.layers))]
        return [*weights, self.dense(), *(x.numpy() for x in self.optimizer.variables)]

    def restore(self, state):
        n = len(self.layers)
        for layer, x in zip(self.layers, state):
            layer.set_weights([x])
        self.weights.assign(state[n])
        for variable, x in zip(self.optimizer.variables, state[n + 1 :], strict=True):
            variable.assign(x)

    clipped_share = property(lambda self: self.optimizer.clipped_share)
    mean_clip_factor = property(lambda self: self.optimizer.mean_clip_factor)


class TestKeras3(Contract):
    @pytest.fixture(scope="class")
    def make(self):
        return InKeras3
