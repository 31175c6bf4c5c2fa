"""Embedding tables: one variable for all fields or for each, shards, or one that grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cowclip_merlin import compat, workers
from cowclip_merlin.batch import Ids
from cowclip_merlin.compat.tensorflow_names import variable_names
from cowclip_merlin.models.columns import spread
from cowclip_merlin.models.row_sync import SyncedLayer
from cowclip_merlin.optimizer.unique_rows import counted_lookup
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.tables.variables import reserve
from cowclip_merlin.types import DType, JsonObject, Tensor, TensorShape, Variable
from cowclip_merlin.workers.partition import shard_rows
from cowclip_merlin.workers.shards import answer, request

tf = compat.tensorflow()

BLOCK_ROWS = 1 << 16
"""Rows whose first values are drawn at once; a multiple of 4, as the random numbers need."""


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class FusedEmbedding(SyncedLayer, tf.keras.layers.Layer):
    """One table for all fields; the rows of field `f` start at its offset.

    A batch is one gather, so the gradient is one `tf.IndexedSlices` with an entry for each
    occurrence of an id. A field usually has one column of ids, but columns may share one.

    An id outside of its field's rows reads another field's row; the loader refuses such ids.

    Args:
        fields: field -> number of rows, in the order of the rows.
        dim: length of a row.
        std: standard deviation of the initial rows; 0 for zeros.
        seed: random seed of the initial rows.
        prefix: prefix of "embeddings" in the variable's name.
        field_of_column: number of the field of each column of ids; None: column f is field f.
    """

    def __init__(
        self,
        fields: Mapping[str, int],
        dim: int,
        *,
        std: float,
        seed: int,
        prefix: str = "",
        field_of_column: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**({"dtype": "float32"} | kwargs))
        self.layout, self.dim = TableLayout(fields), dim
        self.std, self.seed, self.prefix = std, seed, prefix
        self.field_of_column = list(field_of_column or range(len(self.layout.fields)))

    def build(self, input_shape: TensorShape) -> None:
        """Create the table."""

        def initial(shape: Sequence[int], dtype: DType | None = None, **_: Any) -> Tensor:
            return tf.concat([self._initial(f) for f in range(len(self.layout.fields))], axis=0)

        self.table = self.add_weight(
            f"{self.prefix}embeddings", [self.layout.rows, self.dim], initializer=initial
        )
        super().build(input_shape)

    def _initial(self, field: int) -> Tensor:
        """Draw the rows of a field; they depend only on its index and size, and on the seed."""
        rows = list(self.layout.fields.values())[field]
        return self.std * tf.random.stateless_normal([rows, self.dim], seed=[self.seed, field])

    def call(self, ids: Ids, training: bool = False) -> Tensor:
        """Look up the row of each id, [b, F, dim], or [m, dim] with multi-valued columns."""
        return self._read(0, self.rows_of(ids), training)

    def rows_of(self, ids: Ids) -> Tensor:
        """Return the rows of the ids in the whole table, of the shape of `ids.values`."""
        offsets = [self.layout.offsets[field] for field in self.field_of_column]
        return ids.values + spread(tf.constant(offsets, ids.values.dtype), ids)

    def _read(self, index: int, rows: Tensor, training: bool) -> Tensor:
        self._before_read(index, rows, training)
        return tf.gather(self.table_at(index), rows)

    def _before_read(self, index: int, rows: Tensor, training: bool) -> None:
        if self.row_sync is not None and (training or tf.executing_eagerly()):
            self.row_sync.before_read(self, index, rows)

    def table_at(self, index: int) -> Variable:
        """Return the variable that contains the rows of field number `index`."""
        return self.table

    def set_rows(self, field: int, ids: Tensor, values: Tensor) -> None:
        """Set some rows of a field, before any training.

        Args:
            field: index of the field.
            ids: of the field, int64 [k].
            values: [k, dim].
        """
        self._update(self.table, ids + self.layout.offsets[field], values)

    @staticmethod
    def _update(table: Variable, rows: Tensor, values: Tensor) -> None:
        table.scatter_update(tf.IndexedSlices(values, rows))

    def table_layouts(self) -> list[tuple[Variable, TableLayout]]:
        """List each variable with its fields; return [] before the layer is built."""
        return [(self.table, self.layout)] if self.built else []

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | {
            "fields": dict(self.layout.fields),
            "dim": self.dim,
            "std": self.std,
            "seed": self.seed,
            "prefix": self.prefix,
            "field_of_column": list(self.field_of_column),
        }


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class PerFieldEmbedding(FusedEmbedding):
    """One table for each field, with the same values as `FusedEmbedding` in F variables.

    Args:
        *args: as for `FusedEmbedding`.
        frozen: fields whose tables are not trainable.
        **kwargs: as for `FusedEmbedding`.
    """

    def __init__(self, *args: Any, frozen: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.frozen = tuple(frozen)

    def build(self, input_shape: TensorShape) -> None:
        """Create the tables."""
        names = variable_names(self.layout.fields)
        self.tables = [
            self.add_weight(
                f"{names[field]}_{self.prefix}embeddings",
                [rows, self.dim],
                initializer=lambda shape, dtype=None, f=f, **_: self._initial(f),
                trainable=field not in self.frozen,
            )
            for f, (field, rows) in enumerate(self.layout.fields.items())
        ]
        self.built = True

    def call(self, ids: Ids, training: bool = False) -> Tensor:
        """Look up the row of each id, [b, F, dim], or [m, dim] with multi-valued columns."""
        fields = range(len(self.tables))
        if ids.lengths is None and len(self.field_of_column) == len(fields):
            return tf.stack([self._read(f, ids.values[:, f], training) for f in fields], axis=1)
        of_field = spread(tf.constant(self.field_of_column), ids)
        if ids.lengths is None:
            of_field = tf.reshape(of_field + tf.zeros_like(ids.values, tf.int32), [-1])
        values = tf.reshape(ids.values, [-1])
        places = tf.range(tf.size(values))
        parts = tf.dynamic_partition(values, of_field, len(fields))
        places = tf.dynamic_partition(places, of_field, len(fields))
        # Each table is read once, also if columns share it.
        found = tf.dynamic_stitch(places, [self._read(f, parts[f], training) for f in fields])
        if ids.lengths is not None:
            return found
        return tf.reshape(found, [-1, len(self.field_of_column), self.dim])

    def table_at(self, index: int) -> Variable:
        """Return the variable that contains the rows of field number `index`."""
        return self.tables[index]

    def table_layouts(self) -> list[tuple[Variable, TableLayout]]:
        """List each variable with its field; return [] before the layer is built."""
        layouts = [TableLayout({name: rows}) for name, rows in self.layout.fields.items()]
        return list(zip(self.tables, layouts)) if self.built else []

    def set_rows(self, field: int, ids: Tensor, values: Tensor) -> None:
        """Set some rows of a field, as `FusedEmbedding.set_rows`."""
        self._update(self.tables[field], ids, values)

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | {"frozen": list(self.frozen)}


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
        self.table = self.add_weight(
            f"{self.prefix}embeddings", [rows, self.dim], initializer=self._own_rows
        )
        self.built = True

    def _own_rows(self, shape: Sequence[int], dtype: DType | None = None, **_: Any) -> Tensor:
        """Draw the rows of this worker, without the whole table in memory."""
        parts, offset = [], 0
        for field, rows in enumerate(self.layout.fields.values()):
            for first in range(0, rows, BLOCK_ROWS):
                block = self._block(field, first, min(BLOCK_ROWS, rows - first))
                begin = -(offset + first - self.rank) % self.size
                parts.append(block[begin :: self.size])
            offset += rows
        return self.std * tf.concat(parts, 0)

    def _block(self, field: int, first: int, count: int) -> Tensor:
        """Draw `count` rows of a field from row `first` on, before they are scaled."""
        seed = tf.constant([self.seed, field], tf.int64)
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
        return tf.raw_ops.StatelessRandomNormalV2(
            shape=[count, self.dim],
            key=key,
            counter=_skipped(counter, first * self.dim // 4),
            alg=1,  # Philox
            dtype=tf.float32,
        )

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
