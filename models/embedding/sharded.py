"""Embedding tables whose rows are divided among workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cowclip_merlin import compat, workers
from cowclip_merlin.batch import Ids
from cowclip_merlin.models.embedding.fused import FusedEmbedding
from cowclip_merlin.optimizer.unique_rows import counted_lookup
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import DType, Tensor, TensorShape, Variable
from cowclip_merlin.workers.group import shard_rows
from cowclip_merlin.workers.shards import answer, request

tf = compat.tensorflow()

BLOCK_ROWS = 1 << 16
"""Rows whose first values are drawn at once; a multiple of 4, as the random numbers need."""


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class ShardedEmbedding(FusedEmbedding):
    """The rows of `FusedEmbedding` that are on this worker: row r is on worker `r mod N`.

    One process alone has all rows, with the same first values.
    """

    is_shard = True

    def build(self, input_shape: TensorShape) -> None:
        """Create the table."""
        self.rank, self.size = _place()
        if self.size > 1:
            compat.all_to_all()  # refuse an old TensorFlow before the first step
        rows = shard_rows(self.layout.rows, self.rank, self.size)
        (name,), shape = self.names, [rows, self.dim]
        self.tables = [self.add_weight(name, shape, initializer=self._own_rows)]
        self.built = True

    def _own_rows(
        self,
        shape: Sequence[int] = (),
        dtype: DType | None = None,
        epoch: int = 0,
        **_: Any,
    ) -> Tensor:
        """Draw the rows of this worker, without the whole table in memory."""
        parts, offset = [], 0
        for field, rows in enumerate(self.layout.fields.values()):
            for first in range(0, rows, BLOCK_ROWS):
                block = self._block(field, first, min(BLOCK_ROWS, rows - first), epoch)
                begin = -(offset + first - self.rank) % self.size
                parts.append(block[begin :: self.size])
            offset += rows
        return self.std * tf.concat(parts, 0)

    def _block(self, field: int, first: int, count: int, epoch: int) -> Tensor:
        """Draw `count` rows of a field from row `first` on, before they are scaled."""
        seed = tf.constant(self._seed(field, epoch), tf.int64)
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
        return tf.raw_ops.StatelessRandomNormalV2(
            shape=[count, self.dim],
            key=key,
            counter=_skipped(counter, first * self.dim // 4),
            alg=1,  # Philox
            dtype=tf.float32,
        )

    def redraw(self, epoch: int) -> list[Variable]:
        """Draw all rows of this worker anew, as `FusedEmbedding.redraw`."""
        values = self._own_rows(epoch=epoch)
        self._update(self.table, tf.range(len(values)), values)
        return [self.table]

    def set_rows(self, field: int, ids: Tensor, values: Tensor) -> None:
        """Set those rows of a field that are on this worker, as `FusedEmbedding.set_rows`."""
        rows = ids + self.layout.offsets[field]
        here = rows % self.size == self.rank
        self._update(self.table, rows[here] // self.size, values[here])

    def call(self, rows: Tensor, training: bool = False, counts: Tensor | None = None) -> Tensor:
        """Look up rows of this worker by their numbers here, [m] -> [m, dim].

        Args:
            rows: integer [m].
            training: as in Keras.
            counts: occurrences that each row stands for, int32 [m]; None: one.
        """
        if counts is None:
            return self._read(0, rows, training)
        self._before_read(0, rows, training)
        return counted_lookup(self.table, rows, counts)

    def row_names(self) -> list[tuple[Variable, Callable[[int], str]]]:
        """Name rows by their field and id, although this worker has only some of them."""
        if not self.built or self.size == 1:
            return []
        return [(self.table, lambda row: self.layout.describe(row * self.size + self.rank))]

    def table_layouts(self) -> list[tuple[Variable, TableLayout]]:
        """List the table with its fields if it is whole; return [] before the layer is built."""
        if not self.built:
            return []
        own = TableLayout({"rows": int(self.table.shape[0])})
        return [(self.table, self.layout if self.size == 1 else own)]


def look_up_shards(layers: Sequence[ShardedEmbedding], ids: Ids, training: bool) -> list[Tensor]:
    """Look up the row of each id in the tables of all workers, like `FusedEmbedding`, per layer.

    Every worker must call this at the same time, with any number of ids, also with none.
    """
    group, first = workers.current(), layers[0]
    rows = first.rows_of(ids)
    if group is None:
        return [layer(rows, training=training) for layer in layers]
    requests = request(group, rows)
    found = [layer(requests.rows, training=training, counts=requests.counts) for layer in layers]
    found = answer(group, requests, tf.concat(found, 1))
    return tf.split(found, [layer.dim for layer in layers], axis=-1)


def _place() -> tuple[int, int]:
    group = workers.current()
    return (group.rank, group.size) if group else (0, 1)


def _skipped(counter: Tensor, groups: int) -> Tensor:
    """Move a Philox counter, uint64 [2], forward by groups of 4 numbers."""
    low, high = (int(x) for x in counter.numpy())
    number = (high << 64 | low) + groups
    return tf.constant([number % (1 << 64), number >> 64], tf.uint64)
