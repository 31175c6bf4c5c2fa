"""Share memory of NumPy with TensorFlow, number the parts of an array, and sort on the device.

On a GPU, `tf.argsort` gives a whole vector to one block of threads, in the versions we read. The
operation behind `tf.sparse.reorder` sorts with all blocks, and keeps the order of equal keys.
"""

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
    if not tf.config.list_logical_devices("GPU"):
        longest = tf.maximum(tf.reduce_max(tf.cast(lengths, tf.int64)), 1)
        places = ranges_of_parts(tf.range(tf.size(lengths, tf.int64)) * longest, lengths)
        return tf.cast(places // longest, tf.int32)
    later_starts = tf.cumsum(lengths)[:-1][:, tf.newaxis]
    total = tf.reduce_sum(lengths)
    new_parts = tf.scatter_nd(later_starts, tf.ones_like(later_starts[:, 0]), [total + 1])
    return tf.cumsum(new_parts)[:total]


def ranges_of_parts(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the numbers of all ranges that begin at `starts`, one after the other, int64 [m].

    On a CPU, one operation writes them in one pass; GPUs do not have it.

    Args:
        starts: int64 [k].
        lengths: int32 [k].

    >>> tf = tensorflow()
    >>> ranges_of_parts(tf.constant([5, 0], tf.int64), tf.constant([2, 3])).numpy().tolist()
    [5, 6, 0, 1, 2]
    """
    tf = tensorflow()
    sizes = tf.cast(lengths, tf.int64)
    if not tf.config.list_logical_devices("GPU"):
        step = tf.constant(1, tf.int64)
        found = tf.raw_ops.RaggedRange(starts=starts, limits=starts + sizes, deltas=step)
        return found.rt_dense_values
    shift = starts - tf.cumsum(sizes, exclusive=True)
    return tf.gather(shift, part_numbers(lengths)) + tf.range(tf.reduce_sum(sizes))


def sums_of_parts(values: Tensor, numbers: Tensor, parts: Tensor) -> Tensor:
    """Sum the rows of each part, [parts, d]; a part without rows gives zeros.

    On a CPU, sums in ascending order take a sixth of the time of sums in any order. On a GPU, they
    would make the host wait for the last number.

    Args:
        values: [m, d].
        numbers: part of each row, ascending, int32 [m].
        parts: number of parts, int32.

    >>> tf = tensorflow()
    >>> rows = tf.constant([[1.0], [2.0], [4.0]])
    >>> sums_of_parts(rows, tf.constant([0, 0, 2]), 4).numpy().tolist()
    [[3.0], [0.0], [4.0], [0.0]]
    """
    tf = tensorflow()
    if tf.config.list_logical_devices("GPU"):
        return tf.math.unsorted_segment_sum(values, numbers, parts)
    sums = tf.math.segment_sum(values, numbers)  # up to the last part that has rows
    return tf.pad(sums, [[0, parts - tf.shape(sums)[0]], [0, 0]])


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
