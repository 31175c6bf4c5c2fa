"""What the layers of a model read of a batch: embeddings, id weights and continuous features."""

from __future__ import annotations

from typing import NamedTuple

from cowclip_merlin import compat
from cowclip_merlin.types import Tensor

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


class Features(NamedTuple):
    """What a model has read for a batch, and the sums and terms that its layers need of it.

    As a named tuple of tensors, it passes into graphs and out of them.

    Attributes:
        v: embeddings, float32 [b, F, d].
        wide: id weights of the linear part of each target, float32 [b, F, T]; None: no such part.
        x: continuous features, float32 [b, C].

    >>> v, wide = tf.constant([[[1.0, 2.0], [3.0, 4.0]]]), tf.constant([[[0.5], [0.25]]])
    >>> features = Features(v, wide, tf.constant([[9.0]]))
    >>> features.flat.numpy().tolist()
    [[1.0, 2.0, 3.0, 4.0, 9.0]]
    >>> features.first_order.numpy().tolist(), features.second_order.numpy().tolist()
    ([[0.75]], [[11.0]])
    """

    v: Tensor
    wide: Tensor | None
    x: Tensor

    @property
    def from_tables(self) -> list[Tensor]:
        """The tensors through which gradients reach the tables."""
        return [self.v] if self.wide is None else [self.v, self.wide]

    @property
    def flat(self) -> Tensor:
        """All embeddings and continuous features side by side, [b, F * d + C]."""
        return tf.concat([self.embeddings, self.x], axis=1)

    padded = flat
    """`flat` for the hidden layers, perhaps with zeros at the end of each row."""

    @property
    def embeddings(self) -> Tensor:
        """All embeddings side by side, [b, F * d]."""
        return tf.reshape(self.v, [-1, self.v.shape[1] * self.v.shape[2]])

    @property
    def first_order(self) -> Tensor:
        """The sum of the id weights of each target, [b, T]."""
        return sum_over_fields(self.wide)

    @property
    def second_order(self) -> Tensor:
        """The sum over all pairs of fields of the products of their embeddings, [b, 1]."""
        return fm_second_order(self.v)

    @property
    def fm_factors(self) -> Tensor:
        """The terms of `second_order` before the sum over d, [b, d]."""
        return fm_factors(self.v)


class ReadFeatures(NamedTuple):
    """The same for a `BatchRead`: one operation has computed the sums and terms.

    Attributes:
        padded: embeddings, continuous features and zeros, float32 or bfloat16 [b, width].
        first_order: the sum of the id weights, float32 [b, 1]; [b, 0] without a linear part.
        second_order: FM's term, float32 [b, 1]; [b, 0] if the model has none.
        x: continuous features, float32 [b, C].
        embedded: number of columns of `padded` that are embeddings, F * d.

    >>> padded = tf.constant([[1.0, 2.0, 3.0, 4.0, 9.0, 0.0, 0.0, 0.0]])
    >>> ReadFeatures(padded, tf.ones([1, 1]), tf.ones([1, 1]), tf.constant([[9.0]]), 4).flat.numpy()
    array([[1., 2., 3., 4., 9.]], dtype=float32)
    """

    padded: Tensor
    first_order: Tensor
    second_order: Tensor
    x: Tensor
    embedded: int

    @property
    def from_tables(self) -> list[Tensor]:
        """The tensors through which gradients reach the tables."""
        return [self.padded, self.first_order, self.second_order]

    @property
    def flat(self) -> Tensor:
        """All embeddings and continuous features side by side, [b, F * d + C]."""
        return self.padded[:, : self.embedded + self.x.shape[1]]

    @property
    def embeddings(self) -> Tensor:
        """All embeddings side by side, [b, F * d]."""
        return self.padded[:, : self.embedded]
