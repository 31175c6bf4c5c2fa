"""Layers between the shared embeddings and the logits of several targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.targets import Target, check_esmm
from cowclip_merlin.types import JsonObject, Tensor, TensorShape

tf = compat.tensorflow()


def number_of_towers(multi_task: str | None, targets: Sequence[Target], experts: int) -> int:
    """Return how many towers replace the hidden layers; 0: all targets share the hidden layers.

    MMoE has one tower per expert (Ma et al., KDD 2018), ESMM one per target (Ma et al., SIGIR 2018,
    section 2.2: the two networks share the embeddings only).

    Raises:
        InputError: if ESMM has other targets than two of 0 and 1.

    >>> number_of_towers("mmoe", [Target("a"), Target("b")], 3)
    3
    """
    if multi_task != "esmm":
        return experts if multi_task == "mmoe" else 0
    check_esmm(targets)
    return 2


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class Gates(tf.keras.layers.Layer):
    """Mixes the experts for each target: `f_k = sum_i softmax(x W_k)_i e_i` (MMoE, equation 6).

    Args:
        targets: number of targets, T.
        seed: random seed of W.
    """

    def __init__(self, targets: int, *, seed: int, **kwargs: Any) -> None:
        super().__init__(**({"dtype": "float32"} | kwargs))
        self.targets, self.seed = targets, seed

    def build(self, input_shape: TensorShape) -> None:
        """Create the weights of all gates, [n, T * E]; the experts are [b, E, h]."""
        (_, n), (_, experts, _) = input_shape
        he = tf.keras.initializers.HeNormal(seed=self.seed)
        self.kernel = self.add_weight("kernel", [n, self.targets * experts], initializer=he)
        super().build(input_shape)

    def call(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """Input x [b, n] and experts [b, E, h] -> [b, T, h]."""
        x, experts = inputs
        gates = tf.reshape(tf.matmul(x, self.kernel), [-1, self.targets, experts.shape[1]])
        return tf.matmul(tf.nn.softmax(gates), experts)

    def get_config(self) -> JsonObject:
        """Arguments as plain values."""
        return super().get_config() | {"targets": self.targets, "seed": self.seed}


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class LogitPerTarget(tf.keras.layers.Layer):
    """An output layer for each target on an input of its own: `z_k = h_k . w_k + b_k`.

    Args:
        seed: random seed of w.
    """

    def __init__(self, *, seed: int, **kwargs: Any) -> None:
        super().__init__(**({"dtype": "float32"} | kwargs))
        self.seed = seed

    def build(self, input_shape: TensorShape) -> None:
        """Create w [T, h] with the fan-in h, and b [T]."""
        _, targets, h = input_shape
        std = (2.0 / h) ** 0.5 / 0.87962566103423978  # as Keras's HeNormal
        normal = tf.keras.initializers.TruncatedNormal(stddev=std, seed=self.seed)
        self.w = self.add_weight("w", [targets, h], initializer=normal)
        self.b = self.add_weight("b", [targets], initializer="zeros")
        super().build(input_shape)

    def call(self, h: Tensor) -> Tensor:
        """[b, T, h] -> [b, T]."""
        return tf.reduce_sum(h * self.w, axis=2) + self.b

    def get_config(self) -> JsonObject:
        """Arguments as plain values."""
        return super().get_config() | {"seed": self.seed}


def side_by_side(shared: Tensor, h: Tensor) -> Tensor:
    """Concatenate [b, m] with h [b, n], or with each target's h of [b, T, n].

    >>> side_by_side(tf.zeros([2, 3]), tf.zeros([2, 4, 5])).shape.as_list()
    [2, 4, 8]
    """
    if h.shape.rank == 3:
        shared = tf.repeat(tf.expand_dims(tf.cast(shared, h.dtype), 1), h.shape[1], axis=1)
    return tf.concat([shared, h], axis=h.shape.rank - 1)


def of_both(z: Tensor) -> Tensor:
    """Return ESMM's logits of the first label, and of both labels together: [b, 2] -> [b, 2].

    With the logits a of a click and c of a conversion after it, the probability of both is
    p = sigmoid(a) sigmoid(c) (ESMM, equation 1). Its logit is log(p / (1 - p)) =
    -log(exp(-a) + exp(-c) + exp(-a - c)), which does not overflow.

    >>> of_both(tf.constant([[-200.0, 200.0], [200.0, 200.0]])).numpy().round().tolist()
    [[-200.0, -200.0], [200.0, 199.0]]
    """
    a, c = z[:, :1], z[:, 1:]
    both = -tf.reduce_logsumexp(tf.concat([-a, -c, -a - c], axis=1), axis=1, keepdims=True)
    return tf.concat([a, both], axis=1)
