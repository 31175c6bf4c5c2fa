"""Exchange tensors between workers with TensorFlow's collective operations.

Every worker must call the same functions in the same order. The operations know a call by its key
alone, and each key has one shape for ever. So rows are padded to one of few sizes, and the size is
a part of the key. Calls wait for each other, since NCCL needs the same order on all GPUs.

Between training devices, other numbers travel as the bits of floats. Nothing here adds such bits:
TensorFlow replaces denormal results by 0, and small integers are the bits of denormal floats.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.types import Array, Tensor
from cowclip_merlin.workers.group import Count, Workers

tf = compat.tensorflow()

_GROUP, _HOST_GROUP = 740_001, 740_002
"""Numbers of the groups of the workers' training devices, and of their CPUs.

TensorFlow's strategies count from 1 and from 100,001.
"""

_STEPS = 16
"""Sizes between a power of two and the next one: at most 6.25% of the rows are padding."""

_KEY_BITS, _SIZE_BITS = 22, 9


def sum_over(workers: Workers, x: Tensor, name: str) -> Tensor:
    """Sum a float tensor of the same static shape over all workers; all get the same bits.

    Args:
        workers: this process and the others.
        x: the tensor.
        name: of this exchange, the same on all workers.
    """
    key = _key(f"sum {name} {x.shape.as_list()} {x.dtype.name}")
    workers.traffic.add(2 * (workers.size - 1) * _bytes(x) // workers.size)
    return _in_order(
        tf.raw_ops.CollectiveReduceV2,
        workers,
        x,
        key,
        False,
        merge_op="Add",
        final_op="Id",
        max_subdivs_per_device=-1,
    )


def gather(workers: Workers, x: Tensor, name: str, *, host: bool = False) -> Tensor:
    """Concatenate a tensor of the same static shape of all workers, by rank: [n] -> [N * n].

    Args:
        workers: this process and the others.
        x: 32-bit numbers.
        name: of this exchange, the same on all workers.
        host: exchange between CPUs, whatever the training device is.
    """
    return _gather(workers, x, _key(f"gather {name} {x.shape.as_list()} {x.dtype.name}"), host)


def gather_counts(workers: Workers, counts: Tensor, name: str) -> Tensor:
    """Return the counts of all workers, int32 [N, k].

    Args:
        workers: this process and the others.
        counts: of this worker, int32 [k].
        name: of this exchange, the same on all workers.
    """
    every = gather(workers, tf.bitcast(counts, tf.float32), name)
    return tf.reshape(tf.bitcast(every, tf.int32), [workers.size, counts.shape[0]])


def gather_rows(
    workers: Workers, rows: Tensor, counts: Tensor, name: str, *, host: bool = False
) -> Tensor:
    """Concatenate rows of all workers, by rank.

    Args:
        workers: this process and the others.
        rows: 32-bit numbers [n, k], n of this worker.
        counts: rows of every worker, int32 [N].
        name: of this exchange, the same on all workers.
        host: exchange between CPUs, whatever the training device is.

    Returns:
        The rows, [sum of n, k].
    """
    size, step = padded_size(tf.reduce_max(counts))
    padded = tf.pad(rows, [[0, size - tf.shape(rows)[0]], [0, 0]])
    width = rows.shape[1]
    every = _gather(workers, padded, _key(f"rows {name} {width} {rows.dtype.name}", step), host)
    every = tf.reshape(every, [workers.size, size, width])
    return tf.boolean_mask(every, tf.sequence_mask(counts, size))


def gather_arrays(workers: Workers, own: Array, name: str) -> list[Array]:
    """Return the arrays of all workers, by rank, outside of any graph; between CPUs.

    It is `gather_rows` for NumPy: an operation outside of a graph takes longer than its work.

    Args:
        workers: this process and the others.
        own: 32-bit numbers [n, k] with any n.
        name: of this exchange, the same on all workers.
    """
    with tf.device("CPU:0"):
        count = tf.constant([len(own)], tf.int32)
        counts = gather(workers, count, f"length of {name}", host=True).numpy()
        size, step = padded_size(int(counts.max()))
        padded = np.zeros((size, own.shape[1]), own.dtype)
        padded[: len(own)] = own
        x = tf.constant(padded)
        key = _key(f"rows {name} {own.shape[1]} {x.dtype.name}", step)
        every = _gather(workers, x, key, host=True).numpy()
    parts = every.reshape(workers.size, size, own.shape[1])
    return [part[:n] for part, n in zip(parts, counts.tolist(), strict=True)]


def all_to_all(
    workers: Workers, x: Tensor, step: int | Tensor, name: str, *, host: bool = False
) -> Tensor:
    """Send part r of a tensor to worker r, and return the parts that the workers sent here.

    Args:
        workers: this process and the others.
        x: 32-bit numbers [N, size, k].
        step: of `padded_size`, which gave the size.
        name: of this exchange, the same on all workers.
        host: exchange between CPUs, whatever the training device is.
    """
    workers.traffic.add((workers.size - 1) * _bytes(x) // workers.size)
    key = _key(f"all to all {name} {x.shape[2]} {x.dtype.name}", step)
    return tf.ensure_shape(
        _in_order(compat.all_to_all(), workers, x, key, host),
        [workers.size, None, x.shape[2]],
    )


def padded_size(count: Count) -> tuple[Count, Count]:
    """Return the number of rows to which `count` rows are padded, and the number of that size.

    >>> [padded_size(n)[0] for n in (0, 1, 16, 17, 31, 33, 1000)]
    [16, 16, 16, 17, 31, 34, 1024]
    """
    if isinstance(count, int):  # without the hundred operations below
        count = max(count, _STEPS)
        doublings = count.bit_length() - _STEPS.bit_length()
        units = -(-count >> doublings)
        return units << doublings, doublings * (_STEPS + 1) + units - _STEPS
    count = tf.maximum(tf.cast(count, tf.int32), _STEPS)
    doublings = tf.zeros([], tf.int32)
    for bit in range(5, 31):  # 2^4 is the smallest size
        doublings += tf.cast(count >= (1 << bit), tf.int32)
    unit = tf.bitwise.left_shift(1, doublings)
    units = (count + unit - 1) // unit  # 16 to 32
    return units * unit, doublings * (_STEPS + 1) + units - _STEPS


def _gather(workers: Workers, x: Tensor, key: int | Tensor, host: bool) -> Tensor:
    workers.traffic.add((workers.size - 1) * _bytes(x))
    return _in_order(tf.raw_ops.CollectiveGatherV2, workers, x, key, host)


def _in_order(
    operation: Callable[..., Tensor],
    workers: Workers,
    x: Tensor,
    key: int | Tensor,
    host: bool,
    **more: Any,
) -> Tensor:
    """Call an operation after the last one of this graph."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    last = getattr(graph, "cowclip_last_exchange", None)
    with tf.control_dependencies([] if last is None else [last]):
        # Without a time-out: with one, each call would keep two threads for as long.
        result = operation(
            input=x,
            group_size=workers.size,
            group_key=_HOST_GROUP if host else _GROUP,
            instance_key=key,
            ordering_token=[],
            communication_hint="auto",
            timeout_seconds=0.0,
            **more,
        )
    if graph is not None:
        graph.cowclip_last_exchange = result.op
    return result


def _key(name: str, step: int | Tensor = 0) -> int | Tensor:
    """Return the key of a call: its name, and the size of its rows."""
    number = (zlib.crc32(name.encode()) % (1 << _KEY_BITS)) << _SIZE_BITS
    return number + step


def _bytes(x: Tensor) -> Tensor:
    return tf.size(x, tf.int64) * x.dtype.size
