"""Sort on the device that has the numbers.

On a GPU, `tf.argsort` gives a whole vector to one block of threads, in the versions we read. The
operation behind `tf.sparse.reorder` sorts with all blocks, and keeps the order of equal keys.
"""

from __future__ import annotations

from cowclip_merlin.compat.keras import tensorflow
from cowclip_merlin.types import Tensor

LARGEST_KEY = 2**63 - 1


def argsort_on_device(keys: Tensor) -> Tensor:
    """Return the positions of the keys in ascending order, int64 [n], without a copy to the host.

    On the CPU, the order of equal keys may be any.

    Args:
        keys: int64 [n], at least 0 and below `LARGEST_KEY`.

    >>> argsort_on_device(tensorflow().constant([7, 2, 9, 0], "int64")).numpy().tolist()
    [3, 1, 0, 2]
    """
    tf = tensorflow()
    numbers = tf.range(tf.size(keys, tf.int64))
    given = {"input_indices": keys[:, None], "input_values": numbers, "input_shape": [LARGEST_KEY]}
    return tf.raw_ops.SparseReorder(**given).output_values
