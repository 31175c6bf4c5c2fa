"""Make hidden layers, and apply them: as one operation where that equals Keras, else by Keras."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from cowclip_merlin import compat, workers
from cowclip_merlin.choices import contributed
from cowclip_merlin.models.architecture import Architecture
from cowclip_merlin.types import DType, JsonObject, Layer, Tensor, TensorShape, Variable

tf = compat.tensorflow()
mm = compat.merlin_models()


def current_policy() -> str:
    """Return the name of Keras's current policy for new layers."""
    return tf.keras.mixed_precision.global_policy().name


@contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Make layers that are created in this block compute in this precision.

    Weights are always float32; so are tables, logits and probabilities of the five models.

    Args:
        precision: "float32", "bfloat16", "float16", or the name of a Keras policy.

    >>> with computing_in("bfloat16"):
    ...     dense = tf.keras.layers.Dense(1)
    >>> dense.compute_dtype, dense.dtype
    ('bfloat16', 'float32')
    """
    before = current_policy()
    mixed = f"mixed_{precision}" if precision in ("bfloat16", "float16") else precision
    tf.keras.mixed_precision.set_global_policy(mixed)
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


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


_log = logging.getLogger("cowclip_merlin")
_TYPES = {"float32": tf.float32, "mixed_bfloat16": tf.bfloat16}


def made(architecture: Architecture, first: int) -> list[Layer]:
    """Make the hidden layers of an architecture, with seeds from `first` on."""
    seeds = [architecture.seed + first + index for index in range(len(architecture.mlp))]
    if architecture.has_plain_hidden_layers:
        he = tf.keras.initializers.HeNormal
        sizes = zip(architecture.mlp, seeds)
        return [mm.MLPBlock([width], kernel_initializer=he(seed=seed)) for width, seed in sizes]
    names = ("activation", "dropout", "batch_norm")
    how = {name: getattr(architecture, name) for name in names}
    return [HiddenLayer(w, seed=seed, **how) for w, seed in zip(architecture.mlp, seeds)]


def applied(
    layers: Sequence[Layer],
    h: Tensor,
    *,
    fused: bool,
    training: bool,
    output: Layer | None = None,
) -> Tensor:
    """Apply hidden layers one after the other, and perhaps an output layer.

    Args:
        layers: of `made`.
        h: input, [b, k]. Columns that the first layer does not know are 0.
        fused: whether they may be one operation. They are if they are dense layers with bias and
            ReLU, in float32 or mixed bfloat16, on a GPU and without replicas.
        training: whether it is for a step of training.
        output: dense layer in float32 that follows, or None.

    Returns:
        What the last layer gives, [b, n].
    """
    gpu = gpu_of(layers[0].weights) if fused else None
    if gpu is not None and (found := _fused(layers, h, output, gpu)) is not None:
        return found
    h = _by_keras(layers, h, training)
    return h if output is None else output(h)


def _fused(layers: Sequence[Layer], h: Tensor, output: Layer | None, gpu: int) -> Tensor | None:
    """Apply the layers as one operation on this GPU; None if that is not possible."""
    if isinstance(layers[0], HiddenLayer):
        _say_why_not()
        return None
    dense = [_plain_dense(layer) for layer in layers]
    if None in dense or (dtype := _common_type(dense, h)) is None:
        return None
    if (engine := contributed("engine_for")(gpu, dtype)) is None:
        return None
    # Outside of its layer, Keras reads a kernel in float32.
    kernels = [tf.convert_to_tensor(layer.kernel) for layer in dense]
    biases = [tf.convert_to_tensor(layer.bias) for layer in dense]
    hidden_layers, how = contributed("hidden_layers"), {"engine": engine, "dtype": dtype}
    if output is None or not _is_one_number(output):
        h = hidden_layers(h, kernels, biases, **how)
        return h if output is None else output(h)
    products = hidden_layers(h, kernels, biases, output=tf.convert_to_tensor(output.kernel), **how)
    return products + output.bias


def gpu_of(weights: Sequence[Variable]) -> int | None:
    """Return TensorFlow's index of the GPU that weights are on; None on another device."""
    device = tf.DeviceSpec.from_string(weights[0].device if weights else "")
    return device.device_index or 0 if device.device_type == "GPU" else None


@cache
def _say_why_not() -> None:
    _log.info(
        "hidden layers: layer by layer, since the fused operation has ReLU only, without dropout "
        "and batch normalization"
    )


def _by_keras(layers: Sequence[Layer], h: Tensor, training: bool) -> Tensor:
    first = layers[0]
    plain = not isinstance(first, HiddenLayer)
    dense = first.layers[0].dense if plain else first.dense
    if dense.built and (more := h.shape[1] - dense.kernel.shape[0]):
        kernel = tf.pad(tf.cast(dense.kernel, h.dtype), [[0, more], [0, 0]])
        z = tf.matmul(h, kernel) + tf.cast(dense.bias, h.dtype)
        h = dense.activation(z) if plain else first.after_product(z, training)
        layers = layers[1:]
    for layer in layers:
        h = layer(h) if plain else layer(h, training=training)
    return h


def _plain_dense(block: Layer) -> Layer | None:
    """Return the Dense layer of a block; None if it is not built, or does anything besides."""
    inner = block.layers if type(block) is mm.SequentialBlock else []
    dense = getattr(inner[0], "dense", None) if len(inner) == 1 else None
    plain = (
        type(dense) is tf.keras.layers.Dense
        and dense.built
        and dense.use_bias
        and dense.activation is tf.keras.activations.relu
        and dense.activity_regularizer is None
    )
    return dense if plain else None


def _is_one_number(output: Layer) -> bool:
    """Whether an output layer is one product with a bias for each row, in float32."""
    plain = type(output) is tf.keras.layers.Dense and output.built and output.use_bias
    linear = output.activation is tf.keras.activations.linear
    return plain and linear and output.units == 1 and output.dtype_policy.name == "float32"


def _common_type(dense: Sequence[Layer], h: Tensor) -> DType | None:
    """Return the type in which all layers compute; None if the operation does not compute in it."""
    (policy, *others) = {layer.dtype_policy.name for layer in dense}
    fits = h.dtype in (tf.float32, tf.bfloat16) and h.shape.rank == 2 and h.shape[1] is not None
    fits = fits and not others and not tf.distribute.has_strategy()
    return _TYPES.get(policy) if fits else None
