"""An embedding table that grows, and drops rows; each worker may have a part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cowclip_merlin import compat, workers
from cowclip_merlin.batch import Ids, Requests
from cowclip_merlin.models.ctr_model import SyncedLayer
from cowclip_merlin.optimizer.unique_rows import CountedSlices
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.tables.variables import reserve
from cowclip_merlin.types import Tensor, TensorShape, Variable
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.collectives import sum_over
from cowclip_merlin.workers.shards import answer

tf = compat.tensorflow()


class GrowingEmbedding(SyncedLayer, tf.keras.layers.Layer):
    """One table for all fields, reserved at its capacity, which a `GrowingTable` fills.

    A batch has rows of the table, as `GrowingTable.admit` and `lookup` return them, in `Ids`.

    Args:
        capacity: rows to reserve; Linux allocates memory when rows are first written.
        dim: length of a row.
        std: standard deviation of the first values of a row; 0 for zeros.
        seed: random seed of the first values.
        prefix: prefix of "embeddings" in the variable's name.
    """

    def __init__(
        self, capacity: int, dim: int, *, std: float, seed: int, prefix: str = "", **kwargs: Any
    ) -> None:
        super().__init__(**({"dtype": "float32"} | kwargs))
        self.capacity, self.dim = capacity, dim
        self.std, self.seed, self.prefix = std, seed, prefix

    def build(self, input_shape: TensorShape) -> None:
        """Reserve the table."""
        shape = [self.capacity, self.dim]
        self.table = self.add_weight(f"{self.prefix}embeddings", shape, initializer=reserve)
        super().build(input_shape)

    def call(self, rows: Ids, training: bool = False) -> Tensor:
        """Look up each row, [b, F, dim], or [m, dim] with multi-valued columns."""
        if training and self.row_sync is not None:
            self.row_sync.refuse_without_table()
        found = tf.gather(self.table, rows.values)
        if self.row_sync is None or not self.row_sync.zero_rows:
            return found
        # With a gradient of zeros, L2, the clip and Adam do not change a row of zeros.
        absent = tf.expand_dims(rows.values < self.row_sync.zero_rows, -1)
        return tf.where(absent, tf.zeros_like(found), found)

    def table_layouts(self) -> list[tuple[Variable, TableLayout]]:
        """Return [], since each row may belong to any field."""
        return []

    def _trackable_children(self, *args: Any, **kwargs: Any) -> dict[str, object]:
        """Refuse checkpoints of the whole table, for which TensorFlow calls this method."""
        if self.row_sync is not None:
            self.row_sync.refuse_growing("a checkpoint")
        return super()._trackable_children(*args, **kwargs)


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
