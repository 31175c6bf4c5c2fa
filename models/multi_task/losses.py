"""The loss of each row, over all targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cowclip_merlin import compat
from cowclip_merlin.targets import Scales, Target, means_and_spreads, only_clicks
from cowclip_merlin.types import Tensor

tf = compat.tensorflow()


def losses_of(targets: Sequence[Target], scales: Scales) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function of labels and logits that gives the loss of each row, [b].

    With one label of 0 and 1, labels and logits are [b], and the loss is the binary cross-entropy.
    Else both are [b, T], and the loss of a row is the sum of those of its labels: binary
    cross-entropy, or the squared error of a regression in units of its spread, so that seconds or
    euros do not drown clicks. A missing label (NaN) adds 0. So the
    mean over a batch divides each target's sum by all rows, not by those with its label, as Keras
    does with sample weights of 0. The scale of a target's gradient then does not depend on how
    many of the batch's rows have its label, and parts of a batch add up to the whole.

    >>> losses = losses_of([Target("y"), Target("t", True)], {"t": (9.0, 2.0)})
    >>> losses(tf.constant([[1.0, 5.0], [float("nan"), 2.0]]), tf.zeros([2, 2])).numpy().round(4)
    array([6.9431, 1.    ], dtype=float32)
    """
    if only_clicks(targets):
        return tf.nn.sigmoid_cross_entropy_with_logits

    _, spreads = means_and_spreads(targets, scales)

    def of_all(labels: Tensor, z: Tensor) -> Tensor:
        known = tf.math.logical_not(tf.math.is_nan(labels))
        y = tf.where(known, labels, tf.zeros_like(labels))
        numbers = tf.constant([target.regression for target in targets])
        squares = tf.square((z - y) / tf.constant(spreads, z.dtype))
        each = tf.where(numbers, squares, tf.nn.sigmoid_cross_entropy_with_logits(y, z))
        return tf.reduce_sum(tf.where(known, each, tf.zeros_like(each)), axis=1)

    return of_all
