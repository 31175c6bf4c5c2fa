"""The contract, of `cowclip_merlin.keras3.CowClip`."""

import numpy as np
import pytest
from contract import CaughtUp, ContractOfReads

pytestmark = [pytest.mark.system, pytest.mark.quick]
keras = pytest.importorskip("keras", minversion="3")

import tensorflow as tf  # noqa: E402

from cowclip_merlin import keras3  # noqa: E402

IDS = np.arange(60, dtype="int32")
GRID = IDS.reshape(15, 4)


def model_of(layer):
    return keras.Sequential([keras.Input((4,), dtype="int32"), layer])


def of_saved(layer, folder):
    model_of(layer).save(folder / "a.keras")
    return keras.saving.load_model(folder / "a.keras", compile=False).get_weights()[0]


def of_saved_weights(layer, folder):
    model_of(layer).save_weights(folder / "a.weights.h5")
    other = model_of(keras3.Embedding(60, 3))
    other.load_weights(folder / "a.weights.h5")
    return other.get_weights()[0]


def of_checkpoint(layer, folder):
    path = tf.train.Checkpoint(table=layer.weights[0].value).write(str(folder / "checkpoint"))
    return tf.train.load_checkpoint(path).get_tensor("table/.ATTRIBUTES/VARIABLE_VALUE")


OF_LAYER = {
    "lookup": lambda layer, _: layer(IDS),
    "ragged": lambda layer, _: layer(tf.RaggedTensor.from_row_lengths(IDS, [7, 53])).flat_values,
    "sparse": lambda layer, _: tf.reshape(layer(tf.sparse.from_dense(GRID)), [60, 3]),
    "function": lambda layer, _: tf.function(layer)(IDS),
    "get_weights": lambda layer, _: model_of(layer).get_weights()[0],
    "of_layer": lambda layer, _: layer.get_weights()[0],
    "numpy": lambda layer, _: layer.weights[0].numpy(),
    "embeddings": lambda layer, _: layer.embeddings + 0,
    "index": lambda layer, _: layer.weights[0][:],
    "value": lambda layer, _: layer.weights[0].value.read_value(),
    "gather_nd": lambda layer, _: layer.weights[0].value.gather_nd(IDS[:, None]),
    "in_function": lambda layer, _: tf.function(lambda: layer.weights[0] + 0)(),
    "ops": lambda layer, _: keras.ops.take(layer.weights[0], IDS, axis=0),
    "save": of_saved,
    "save_weights": of_saved_weights,
    "checkpoint": of_checkpoint,
}


class InKeras3(CaughtUp):
    HISTORY = "cowclip_merlin.kernels.table_steps"
    READS = tuple(OF_LAYER)

    def __init__(self, tables, dense, *, lr, **settings):
        self.layers = [keras3.Embedding(*x.shape) for x in tables]
        for layer, x in zip(self.layers, tables):
            layer.build(())
            layer.set_weights([x])
        self.weights = keras.Variable(dense, name="dense")
        self.every = [layer._embeddings for layer in self.layers] + [self.weights]
        self.change_optimizer(lr, **settings)

    def change_optimizer(self, lr, *, betas=(0.9, 0.999), **settings):
        class Rate(keras.optimizers.schedules.LearningRateSchedule):
            def __call__(self, step):
                return tf.numpy_function(lambda t: np.float32(lr(int(t))), [step], tf.float32)

            def get_config(self):
                return {}

        own = {"beta_1": betas[0], "beta_2": betas[1], **settings}
        self.optimizer = keras3.CowClip(Rate() if callable(lr) else lr, **own)
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

    def read(self, how, folder):
        return np.asarray(OF_LAYER[how](self.layers[0], folder))

    def look_up(self, ids):
        return self.layers[0](ids).numpy()

    def write(self, rows):
        self.layers[0].weights[0].assign(rows)

    def behind(self):
        steps = self.optimizer._tables[0].steps
        return steps._last < steps.missed, steps.missed

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

    @staticmethod
    def of(values, **arguments):
        config = keras3.CowClip.of(values, **arguments).get_config()
        return tuple(config[x] for x in ("learning_rate", "dense_lr", "l2", "clip", "update"))

    clipped_share = property(lambda self: self.optimizer.clipped_share)
    mean_clip_factor = property(lambda self: self.optimizer.mean_clip_factor)


class TestKeras3(ContractOfReads):
    @pytest.fixture(scope="class")
    def make(self):
        return InKeras3
