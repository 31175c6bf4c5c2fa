"""The clip "clippy", which bounds the update of an optimizer, not its gradient."""

from __future__ import annotations

from cowclip_merlin import compat
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.clip import RowUpdates, shrink_factor
from cowclip_merlin.types import Tensor

tf = compat.tensorflow()


def clippy_factor(rows: RowUpdates, settings: RowSettings) -> Tensor:
    """Clip by field: no coordinate changes by more than `lambda_rel * |w| + lambda_abs`.

    Clippy bounds the update of an optimizer, not its gradient (Tang et al., "Improving Training
    Stability for Multitask Ranking Models in Recommender Systems", arXiv 2302.09178). With u the
    preconditioned gradient, it scales a variable's learning rate by
    `min(1, min_i (lambda_rel * |w_i| + lambda_abs) / (lr * |u_i|))` over the coordinates i of the
    variable. Here, a field takes the role of the variable.

    Returns:
        The factor of each row, [n].

    >>> rows = RowUpdates(
    ...     update=tf.constant([[4.0, 1.0], [0.0, 0.5]]),
    ...     w=tf.constant([[1.0, 0.0], [0.0, 0.0]]),
    ...     field=tf.constant([0, 1]),
    ...     num_fields=2,
    ... )
    >>> clippy_factor(rows, RowSettings(lambda_rel=0.5, lambda_abs=0.5)).numpy().tolist()
    [0.25, 1.0]
    """
    limit = settings.lambda_rel * tf.abs(rows.w) + settings.lambda_abs
    per_row = tf.reduce_min(shrink_factor(tf.abs(rows.update), limit), axis=-1)
    per_field = tf.math.unsorted_segment_min(per_row, rows.field, rows.num_fields)
    return tf.gather(per_field, rows.field)
