"""Share memory of NumPy with TensorFlow, and number the parts of an array."""

from __future__ import annotations

from cowclip_merlin.compat.keras import tensorflow, version_of
from cowclip_merlin.types import Tensor


def numpy_memory_can_be_shared(version: str) -> bool:
    """Return whether this version of NumPy may share memory with TensorFlow by DLPack.

    TensorFlow frees tensors without Python's global lock. NumPy acquires the lock from version
    1.24 on (numpy/numpy#22510). With older versions, as in NVIDIA's image, Python aborts.

    >>> numpy_memory_can_be_shared("1.22.4"), numpy_memory_can_be_shared("2.0.0")
    (False, True)
    """
    return version_of(version) >= (1, 24)


def part_numbers(lengths: Tensor) -> Tensor:
    """Return, for each element of consecutive parts, the number of its part, int32 [m].

    `tf.repeat` tiles each part to the length of the longest one, which takes too much memory if
    lengths differ.

    Args:
        lengths: number of elements of each part, int32 [k].

    >>> part_numbers([2, 0, 3]).numpy().tolist()
    [0, 0, 2, 2, 2]
    """
    tf = tensorflow()
    lengths = tf.convert_to_tensor(lengths, tf.int32)
    later_starts = tf.cumsum(lengths)[:-1][:, tf.newaxis]
    total = tf.reduce_sum(lengths)
    new_parts = tf.scatter_nd(later_starts, tf.ones_like(later_starts[:, 0]), [total + 1])
    return tf.cumsum(new_parts)[:total]
