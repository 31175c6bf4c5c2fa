"""Read rows of tables of which every worker has a part: row r is on worker `r mod N`.

A lookup sends each id to the worker that has its row, and gets the row back. Its gradient goes the
same way: a worker gets the sums of gradients of its rows, and how often each worker has read them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.batch import Requests
from cowclip_merlin.types import Array, Tensor
from cowclip_merlin.workers.collectives import all_to_all, gather, gather_counts, padded_size
from cowclip_merlin.workers.group import Workers

tf = compat.tensorflow()


class Asked(NamedTuple):
    """What the workers have asked for.

    Attributes:
        received: what was sent to this worker, by rank of the sender, int64 [m, k].
        places: place of each of them in the answers, [N, size], as one number, int32 [m].
        sent: place in the answers that this worker gets of each of its own questions, int32 [n].
        size: answers for one worker, with padding, int32.
        step: number of that size, int32.
    """

    received: Array
    places: Array
    sent: Array
    size: Array
    step: Array


def ask(workers: Workers, questions: Array, owners: Array) -> Asked:
    """Send numbers to the workers that own them, and receive those of this worker.

    Args:
        workers: this process and the others.
        questions: int64 [n, k].
        owners: rank of the worker that gets each of them, int64 [n].
    """
    tf, width = compat.tensorflow(), 2 * questions.shape[1]
    order = np.argsort(owners, kind="stable")
    sends = np.bincount(owners, minlength=workers.size)
    with tf.device("CPU:0"):
        counts = tf.constant(sends, tf.int32)
        every = gather(workers, counts, "counts of requests", host=True).numpy()
        every = every.reshape(workers.size, workers.size)  # [from, to]
        size, step = padded_size(int(every.max()))
        first = np.cumsum(sends) - sends
        place = owners[order] * size + np.arange(len(owners)) - first[owners[order]]
        bits = np.zeros((workers.size * size, width), np.int32)
        bits[place] = np.ascontiguousarray(questions[order]).view(np.int32)
        bits = tf.constant(bits.reshape(workers.size, size, width))
        answered = all_to_all(workers, bits, step, "requests", host=True).numpy()
    here = np.flatnonzero((np.arange(size) < every[:, workers.rank, None]).reshape(-1))
    received = np.ascontiguousarray(answered.reshape(-1, width)[here]).view(np.int64)
    sent = np.empty(len(owners), np.int32)
    sent[order] = place
    return Asked(received, here.astype(np.int32), sent, np.int32(size), np.int32(step))


def request(workers: Workers, rows: Tensor) -> Requests:
    """Ask the other workers for rows, and learn which rows they ask for.

    Args:
        workers: this process and the others.
        rows: numbers of rows in the whole table, integer of any shape.
    """
    flat = tf.cast(tf.reshape(rows, [-1]), tf.int32)
    ids, position, cnt = tf.unique_with_counts(flat)
    owner = ids % workers.size
    order = tf.argsort(owner, stable=True)
    sends = tf.math.bincount(owner, minlength=workers.size, maxlength=workers.size)
    sends = tf.ensure_shape(sends, [workers.size])
    every = gather_counts(workers, sends, "counts of shards")  # [N from, N to]
    size, step = padded_size(tf.reduce_max(every))
    sorted_owner = tf.gather(owner, order)
    first = tf.cumsum(sends, exclusive=True)
    place = sorted_owner * size + tf.range(tf.size(ids)) - tf.gather(first, sorted_owner)
    asked = _spread(tf.gather(tf.stack([ids, cnt], 1), order), place, workers.size * size)
    received = _all_to_all(workers, asked, size, step, "ids of shards")
    places = tf.where(tf.reshape(tf.sequence_mask(every[:, workers.rank], size), [-1]))
    found = tf.gather_nd(received, places)
    # Places in the order of the distinct ids, then of all occurrences.
    place_of_id = tf.scatter_nd(order[:, tf.newaxis], place, tf.shape(place))
    return Requests(
        rows=found[:, 0] // workers.size,
        counts=found[:, 1],
        places=tf.cast(places[:, 0], tf.int32),
        answered=tf.reshape(tf.gather(place_of_id, position), tf.shape(rows)),
        size=size,
        step=step,
    )


def answer(workers: Workers, requests: Requests, values: Tensor, name: str = "shards") -> Tensor:
    """Send rows to the workers that asked for them; return the rows that this worker asked for.

    Args:
        workers: this process and the others.
        requests: of this lookup.
        values: the rows `requests.rows`, float32 [m, d].
        name: of this exchange, the same on all workers.

    Returns:
        The row of every occurrence, [..., d]. Its gradient reaches `values` of the workers that
        have the rows.
    """
    total = workers.size * requests.size
    sent = _spread_rows(values, requests.places, total)
    exchange = _differentiable(workers, requests.size, requests.step, name)
    return tf.gather(exchange(sent), requests.answered)


def _differentiable(
    workers: Workers, size: Tensor, step: Tensor, name: str
) -> Callable[[Tensor], Tensor]:
    """Return the exchange of rows, whose gradient goes the opposite way."""

    @tf.custom_gradient
    def exchange(rows: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        def gradient(upstream: Tensor) -> Tensor:
            return _rows_to_all(workers, upstream, size, step, f"gradients of {name}")

        return _rows_to_all(workers, rows, size, step, f"rows of {name}"), gradient

    return exchange


def _rows_to_all(workers: Workers, rows: Tensor, size: Tensor, step: Tensor, name: str) -> Tensor:
    width = rows.shape[1]
    received = all_to_all(workers, tf.reshape(rows, [workers.size, size, width]), step, name)
    return tf.reshape(received, [-1, width])


def _all_to_all(workers: Workers, numbers: Tensor, size: Tensor, step: Tensor, name: str) -> Tensor:
    """Exchange int32 numbers [N * size, k] as the bits of floats."""
    bits = tf.bitcast(numbers, tf.float32)
    return tf.bitcast(_rows_to_all(workers, bits, size, step, name), tf.int32)


def _spread(numbers: Tensor, place: Tensor, total: Tensor) -> Tensor:
    """Put integers [n, k] at their places among `total`; the others are 0."""
    shape = tf.stack([total, tf.shape(numbers)[1]])
    spread = tf.scatter_nd(place[:, tf.newaxis], numbers, shape)
    return tf.ensure_shape(spread, [None, numbers.shape[1]])


def _spread_rows(values: Tensor, places: Tensor, total: Tensor) -> Tensor:
    """Put rows [m, d] at their places among `total`; the others are 0. Only moves numbers."""
    zeros = tf.zeros([total, values.shape[1]], values.dtype)
    return tf.tensor_scatter_nd_update(zeros, places[:, tf.newaxis], values)
