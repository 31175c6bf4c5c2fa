"""Multi-valued columns: combine the embedding rows of all ids of a column to one, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.batch import Ids

tf = compat.tensorflow()

POWERS = {"sum": 0.0, "mean": 1.0, "sqrtn": 0.5}
"""Combiner -> p: the sum of n embedding rows is divided by n^p. The names are TensorFlow's."""


def cells_of(ids: Ids) -> Any:
    """Return `row * F + column` of every id of multi-valued columns, ascending, int32 [m]."""
    lengths = tf.reshape(ids.lengths, [-1])
    return tf.repeat(tf.range(tf.size(lengths)), lengths)


def fields_of(ids: Ids) -> Any:
    """Return the index of its column for every id of multi-valued columns, int32 [m]."""
    return cells_of(ids) % ids.num_fields


def spread(numbers: Any, ids: Ids) -> Any:
    """Spread one number per column [F] over the ids, to a shape that adds to `ids.values`."""
    return numbers if ids.lengths is None else tf.gather(numbers, fields_of(ids))


def combined(found: Any, ids: Ids, combiners: Sequence[str]) -> Any:
    """Combine the embedding rows of each row and column; no id gives zeros.

    The gradient has an entry for each id, so an id that is twice in a list counts twice.

    Args:
        found: embedding rows of the ids, [b, F, d], or [m, d] with multi-valued columns.
        ids: the ids.
        combiners: name in `POWERS` for each column.

    Returns:
        One embedding for each row and column, [b, F, d].

    >>> ids = Ids(tf.constant([4, 4, 9]), tf.constant([[2, 1], [0, 0]]))
    >>> found = tf.constant([[1.0], [3.0], [5.0]])
    >>> combined(found, ids, ["mean", "sum"]).numpy().tolist()
    [[[2.0], [5.0]], [[0.0], [0.0]]]
    """
    if ids.lengths is None:
        return found
    sums = tf.math.unsorted_segment_sum(found, cells_of(ids), tf.size(ids.lengths))
    lengths = tf.cast(tf.maximum(ids.lengths, 1), found.dtype)
    weights = tf.pow(lengths, tf.constant([-POWERS[each] for each in combiners], found.dtype))
    shape = [-1, ids.num_fields, found.shape[-1]]
    return tf.reshape(sums, shape) * tf.expand_dims(weights, -1)
