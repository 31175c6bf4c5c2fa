"""Feature interactions: factorization machine and cross layers."""

from __future__ import annotations

from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.types import JsonObject, Tensor, TensorShape, Variable

tf = compat.tensorflow()


def sum_over_fields(v: Tensor) -> Tensor:
    """Sum over the fields, [b, F, d] -> [b, d].

    The sum keeps its axis until the end. If a sum drops an axis, TensorFlow's gradient asks the GPU
    for the shape, so the host waits for the whole forward pass.

    >>> sum_over_fields(tf.constant([[[1.0, 2.0], [3.0, 4.0]]])).numpy().tolist()
    [[4.0, 6.0]]
    """
    return tf.squeeze(tf.reduce_sum(v, axis=1, keepdims=True), axis=1)


def fm_second_order(v: Tensor) -> Tensor:
    """Compute `0.5 * sum_d((sum_f v)^2 - sum_f v^2)`, [b, F, d] -> [b, 1] (DeepFM, equation 2).

    >>> fm_second_order(tf.constant([[[1.0, 2.0], [3.0, 4.0]]])).numpy().tolist()
    [[11.0]]
    """
    return 0.5 * tf.reduce_sum(_products(v), axis=1, keepdims=True)


def fm_factors(v: Tensor) -> Tensor:
    """Return the terms of `fm_second_order` before the sum over d, [b, F, d] -> [b, d].

    >>> fm_factors(tf.constant([[[1.0, 2.0], [3.0, 4.0]]])).numpy().tolist()
    [[3.0, 8.0]]
    """
    return 0.5 * _products(v)


def _products(v: Tensor) -> Tensor:
    """Return twice the sum over all pairs of fields of their products, [b, d]."""
    return tf.square(sum_over_fields(v)) - sum_over_fields(tf.square(v))


class _Cross(tf.keras.layers.Layer):
    """A stack of `layers` cross layers on x0 [b, n]."""

    def __init__(self, layers: int, *, seed: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layers, self.seed = layers, seed

    def _kernel(self, name: str, shape: list[int], index: int) -> Variable:
        he = tf.keras.initializers.HeNormal(seed=self.seed + index)
        return self.add_weight(name, shape, initializer=he)

    def _bias(self, layer: int, n: int) -> Variable:
        return self.add_weight(f"b_{layer}", [n], initializer="zeros")

    def get_config(self) -> JsonObject:
        """Arguments as plain values."""
        return super().get_config() | {"layers": self.layers, "seed": self.seed}


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class VectorCross(_Cross):
    """DCN: `x_(l+1) = x0 * (x_l . w_l) + b_l + x_l`."""

    def build(self, input_shape: TensorShape) -> None:
        """Create w and b of every layer."""
        n = int(input_shape[-1])
        self.w = [self._kernel(f"w_{i}", [n, 1], i) for i in range(self.layers)]
        self.b = [self._bias(i, n) for i in range(self.layers)]
        super().build(input_shape)

    def call(self, x0: Tensor) -> Tensor:
        """[b, n] -> [b, n]."""
        x = x0
        for w, b in zip(self.w, self.b):
            x = x0 * tf.matmul(x, w) + b + x
        return x


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class MatrixCross(_Cross):
    """DCNv2: `x_(l+1) = x0 * (W_l x_l + b_l) + x_l`."""

    def build(self, input_shape: TensorShape) -> None:
        """Create W and b of every layer."""
        n = int(input_shape[-1])
        self.w = [self._kernel(f"w_{i}", [n, n], i) for i in range(self.layers)]
        self.b = [self._bias(i, n) for i in range(self.layers)]
        super().build(input_shape)

    def call(self, x0: Tensor) -> Tensor:
        """[b, n] -> [b, n]."""
        x = x0
        for w, b in zip(self.w, self.b):
            x = x0 * (tf.matmul(x, w) + b) + x
        return x


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class LowRankCross(_Cross):
    """DCNv2 with a mixture of low-rank experts (arXiv 2008.13535, section 3.3).

    `x_(l+1) = sum_i G_i(x_l) * x0 * (U_i tanh(C_i tanh(V_i^T x_l)) + b_l) + x_l`. G is a softmax
    over the experts' linear gates, which all layers share.
    """

    def __init__(self, layers: int, *, rank: int, experts: int, seed: int, **kwargs: Any) -> None:
        super().__init__(layers, seed=seed, **kwargs)
        self.rank, self.experts = rank, experts

    def build(self, input_shape: TensorShape) -> None:
        """Create U, C, V and b of every layer, and the gates."""
        n, r, e = int(input_shape[-1]), self.rank, self.experts
        shapes = {"u": [e, n, r], "c": [e, r, r], "v": [e, n, r]}
        self.factors = [
            {
                name: self._stacked(f"{name}_{i}", shape, 3 * i + k)
                for k, (name, shape) in enumerate(shapes.items())
            }
            for i in range(self.layers)
        ]
        self.b = [self._bias(i, n) for i in range(self.layers)]
        self.gate = self._kernel("gate", [n, e], 3 * self.layers)
        super().build(input_shape)

    def _stacked(self, name: str, shape: list[int], index: int) -> Variable:
        """Create one kernel per expert, initialized with the fan-in of its product."""
        fan_in = shape[2] if name.startswith("u") else shape[1]
        std = (2.0 / fan_in) ** 0.5
        normal = tf.keras.initializers.TruncatedNormal(
            stddev=std / 0.87962566103423978, seed=self.seed + index
        )
        return self.add_weight(name, shape, initializer=normal)

    def call(self, x0: Tensor) -> Tensor:
        """[b, n] -> [b, n]."""
        x = x0
        for factor, b in zip(self.factors, self.b):
            low = tf.tanh(tf.einsum("bn,enr->ber", x, factor["v"]))
            low = tf.tanh(tf.einsum("ber,eqr->beq", low, factor["c"]))
            experts = tf.einsum("ber,enr->ben", low, factor["u"]) + b
            gates = tf.nn.softmax(tf.matmul(x, self.gate))
            x = x0 * tf.einsum("be,ben->bn", gates, experts) + x
        return x

    def get_config(self) -> JsonObject:
        """Arguments as plain values."""
        return super().get_config() | {"rank": self.rank, "experts": self.experts}
