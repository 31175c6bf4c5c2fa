"""A hidden layer with batch normalization, another activation than ReLU, or dropout."""

from __future__ import annotations

from typing import Any

from cowclip_merlin import compat, workers
from cowclip_merlin.types import JsonObject, Tensor, TensorShape

tf = compat.tensorflow()

_SAVED = tf.keras.utils.register_keras_serializable(package="cowclip_merlin")


@_SAVED
class HiddenLayer(tf.keras.layers.Layer):
    """`dropout(activation(norm(x W + b)))`.

    Args:
        width: number of outputs.
        activation: one of `choices.ACTIVATIONS`.
        dropout: share of the outputs that a step of training sets to 0.
        batch_norm: whether to normalize before the activation; Keras's `BatchNormalization`.
        seed: random seed of W and of the dropped outputs.
    """

    def __init__(
        self,
        width: int,
        *,
        activation: str,
        dropout: float,
        batch_norm: bool,
        seed: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._settings = {
            "width": width, "activation": activation, "dropout": dropout,
            "batch_norm": batch_norm, "seed": seed,
        }  # fmt: skip
        he = tf.keras.initializers.HeNormal(seed=seed)
        self.dense = tf.keras.layers.Dense(width, kernel_initializer=he)
        norms = [compat.batch_normalization()()] if batch_norm else []
        dice = activation == "dice"
        last = [CountedDropout(dropout, seed=seed)] if dropout else []
        self.others = [*norms, Dice() if dice else tf.keras.layers.Activation(activation), *last]

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """[b, n] -> [b, width]."""
        return self.after_product(self.dense(x), training)

    def after_product(self, z: Tensor, training: bool) -> Tensor:
        """Apply all that follows `x W + b`."""
        for layer in self.others:
            z = layer(z, training=training)
        return z

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | self._settings


@_SAVED
class Dice(tf.keras.layers.Layer):
    """`p(s) s + (1 - p(s)) a s` with `p = sigmoid((s - E[s]) / sqrt(Var[s] + 1e-8))`.

    The activation of Zhou et al. (arXiv 1706.06978, equation 3). E and Var are those of the batch
    in training, and their moving means else. `a` is learned for each output, and 0 at first.
    """

    def build(self, input_shape: TensorShape) -> None:
        """Create `a` and the normalization."""
        self.norm = compat.batch_normalization()(epsilon=1e-8, center=False, scale=False)
        self.a = self.add_weight("a", [input_shape[-1]], initializer="zeros")
        super().build(input_shape)

    def call(self, s: Tensor, training: bool = False) -> Tensor:
        """[b, n] -> [b, n]."""
        p = tf.sigmoid(self.norm(s, training=training))
        return p * s + (1 - p) * self.a * s


@_SAVED
class CountedDropout(tf.keras.layers.Layer):
    """Sets a share of its inputs to 0 in training, and divides the others by the share that stays.

    What it drops follows from its seed and the number of its steps, which a checkpoint has. So a
    resumed run drops the same as one that was not stopped. Each of several workers drops its own.

    Args:
        rate: share to drop, above 0 and below 1.
        seed: random seed.
    """

    def __init__(self, rate: float, *, seed: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate, self.seed = rate, seed

    def build(self, input_shape: TensorShape) -> None:
        """Create the count of steps."""
        self.steps = self.add_weight(
            "steps", [], tf.int64, initializer="zeros", trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )  # fmt: skip
        super().build(input_shape)

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """Any shape -> the same shape."""
        if not training:
            return x
        group = workers.current()
        rank, size = (group.rank, group.size) if group else (0, 1)
        step = self.steps.read_value()
        with tf.control_dependencies([step]):
            self.steps.assign_add(1)
        seed = tf.stack([tf.constant(self.seed, tf.int64), step * size + rank])
        return tf.nn.experimental.stateless_dropout(x, self.rate, seed)

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | {"rate": self.rate, "seed": self.seed}
