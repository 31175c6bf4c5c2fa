"""Lookups in growing tables of which each worker has a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cowclip_merlin import compat, workers
from cowclip_merlin.batch import Requests
from cowclip_merlin.models.embedding.growing import GrowingEmbedding
from cowclip_merlin.optimizer.unique_rows import CountedSlices
from cowclip_merlin.types import Tensor, Variable
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.collectives import sum_over
from cowclip_merlin.workers.shards import answer

tf = compat.tensorflow()


def look_up_requests(
    layers: Sequence[GrowingEmbedding], requests: Requests, training: bool
) -> list[Tensor]:
    """Look up the row of each id in the tables of all workers, [..., d] per layer.

    Every worker must call this at the same time, with any number of ids, also with none.

    Args:
        layers: of one model, whose `GrowingShard` has given the rows of `requests`.
        requests: of the ids.
        training: as in Keras.
    """
    group, sync = workers.current(), layers[0].row_sync
    if training:
        sync.refuse_without_table()
    tables = [compat.stored(layer.table) for layer in layers]
    found = _own_rows(group, tables, requests, shared=sync.shared_rows, zeros=sync.zero_rows > 0)
    found = answer(group, requests, found, "growing shards" if training else "scored shards")
    return tf.split(found, [layer.dim for layer in layers], axis=-1)


def _own_rows(
    group: Workers, tables: Sequence[Variable], requests: Requests, *, shared: int, zeros: bool
) -> Tensor:
    """Look up the rows of this worker in all tables, side by side, [m, sum of d].

    Rows below `shared` are on all workers. Their gradients and counts are summed over them, so
    every worker makes the same update. With `zeros`, they read zeros and have no gradients.
    """
    rows, counts = requests.rows, requests.counts
    widths = [int(table.shape[1]) for table in tables]

    @tf.custom_gradient
    def lookup(*handles: Tensor) -> tuple[Tensor, Callable[[Tensor], list[CountedSlices]]]:
        parts = [
            tf.raw_ops.ResourceGather(resource=handle, indices=rows, dtype=table.dtype)
            for handle, table in zip(handles, tables)
        ]
        found = tf.ensure_shape(tf.concat(parts, 1), [None, sum(widths)])
        if zeros:
            found = tf.where((rows < shared)[:, tf.newaxis], tf.zeros_like(found), found)

        def gradient(upstream: Tensor) -> list[CountedSlices]:
            g, ids, cnt = _own_gradients(upstream, rows, counts, shared)
            if not zeros:
                of_all = _of_shared(group, upstream, rows, counts, shared)
                g, ids, cnt = (tf.concat(pair, 0) for pair in zip((g, ids, cnt), of_all))
            return [CountedSlices(part, ids, cnt) for part in tf.split(g, widths, axis=1)]

        return found, gradient

    for table in tables:  # a tape watches a variable from a read of it on
        tf.stop_gradient(tf.gather(table, rows[:0]))
    return lookup(*(table.handle for table in tables))


def _own_gradients(
    upstream: Tensor, rows: Tensor, counts: Tensor, shared: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients, numbers and counts of the rows that only this worker has."""
    own = tf.where(rows >= shared)[:, 0]
    return tf.gather(upstream, own), tf.gather(rows, own), tf.gather(counts, own)


def _of_shared(
    group: Workers, upstream: Tensor, rows: Tensor, counts: Tensor, shared: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients, numbers and counts of the shared rows that some worker reads."""
    number = tf.where(rows < shared, rows, -1)  # a sum of segments leaves these out
    known = tf.concat([upstream, tf.cast(counts, tf.float32)[:, tf.newaxis]], 1)
    sums = tf.math.unsorted_segment_sum(known, number, shared)
    sums = tf.ensure_shape(sums, [shared, upstream.shape[1] + 1])
    sums = sum_over(group, sums, "shared rows")
    read = tf.where(sums[:, -1] > 0)[:, 0]
    sums = tf.gather(sums, read)
    return sums[:, :-1], tf.cast(read, rows.dtype), tf.cast(sums[:, -1], tf.int32)
