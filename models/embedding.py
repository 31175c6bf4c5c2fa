"""Embedding tables: one variable for all fields, one for each field, or one that grows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.models.row_sync import SyncedLayer
from cowclip_merlin.models.tensorflow_names import variable_names
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.tables.variables import reserve

tf = compat.tensorflow()


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class FusedEmbedding(SyncedLayer, tf.keras.layers.Layer):
    """One table for all fields; the rows of field `f` start at its offset.

    A batch is one gather, so the gradient is one `tf.IndexedSlices` with an entry for each of
    the b * F occurrences.

    An id outside of its field's rows reads another field's row; the loader refuses such ids.

    Args:
        fields: field -> number of rows, in the order of the ids.
        dim: length of a row.
        std: standard deviation of the initial rows; 0 for zeros.
        seed: random seed of the initial rows.
        prefix: prefix of "embeddings" in the variable's name.
    """

    def __init__(
        self,
        fields: Mapping[str, int],
        dim: int,
        *,
        std: float,
        seed: int,
        prefix: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**({"dtype": "float32"} | kwargs))
        self.layout, self.dim = TableLayout(fields), dim
        self.std, self.seed, self.prefix = std, seed, prefix

    def build(self, input_shape: Any) -> None:
        """Create the table."""

        def initial(shape: Any, dtype: Any = None, **_: Any) -> Any:
            return tf.concat([self._initial(f) for f in range(len(self.layout.fields))], axis=0)

        self.table = self.add_weight(
            f"{self.prefix}embeddings", [self.layout.rows, self.dim], initializer=initial
        )
        super().build(input_shape)

    def _initial(self, field: int) -> Any:
        """Draw the rows of a field; they depend only on its index and size, and on the seed."""
        rows = list(self.layout.fields.values())[field]
        return self.std * tf.random.stateless_normal([rows, self.dim], seed=[self.seed, field])

    def call(self, ids: Any, training: bool = False) -> Any:
        """Look up the rows of the ids, [b, F] -> [b, F, dim]."""
        return self._read(0, ids + tf.constant(self.layout.offsets, ids.dtype), training)

    def _read(self, index: int, rows: Any, training: bool) -> Any:
        if self.row_sync is not None and (training or tf.executing_eagerly()):
            self.row_sync.before_read(self, index, rows)
        return tf.gather(self.table_at(index), rows)

    def table_at(self, index: int) -> Any:
        """Return the variable that contains the rows of field number `index`."""
        return self.table

    def table_layouts(self) -> list[tuple[Any, TableLayout]]:
        """List each variable with its fields; return [] before the layer is built."""
        return [(self.table, self.layout)] if self.built else []

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as plain values."""
        return super().get_config() | {
            "fields": dict(self.layout.fields),
            "dim": self.dim,
            "std": self.std,
            "seed": self.seed,
            "prefix": self.prefix,
        }


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class PerFieldEmbedding(FusedEmbedding):
    """One table for each field, with the same values as `FusedEmbedding` in F variables."""

    def build(self, input_shape: Any) -> None:
        """Create the tables."""
        names = variable_names(self.layout.fields)
        self.tables = [
            self.add_weight(
                f"{names[field]}_{self.prefix}embeddings",
                [rows, self.dim],
                initializer=lambda shape, dtype=None, f=f, **_: self._initial(f),
            )
            for f, (field, rows) in enumerate(self.layout.fields.items())
        ]
        self.built = True

    def call(self, ids: Any, training: bool = False) -> Any:
        """Look up the rows of the ids, [b, F] -> [b, F, dim]."""
        rows = [self._read(f, ids[:, f], training) for f in range(len(self.tables))]
        return tf.stack(rows, axis=1)

    def table_at(self, index: int) -> Any:
        """Return the variable that contains the rows of field number `index`."""
        return self.tables[index]

    def table_layouts(self) -> list[tuple[Any, TableLayout]]:
        """List each variable with its field; return [] before the layer is built."""
        layouts = [TableLayout({name: rows}) for name, rows in self.layout.fields.items()]
        return list(zip(self.tables, layouts)) if self.built else []


class GrowingEmbedding(SyncedLayer, tf.keras.layers.Layer):
    """One table for all fields, reserved at its capacity, which a `GrowingTable` fills.

    A batch has rows of the table, as `GrowingTable.admit` and `lookup` return them, not ids.

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

    def build(self, input_shape: Any) -> None:
        """Reserve the table."""
        shape = [self.capacity, self.dim]
        self.table = self.add_weight(f"{self.prefix}embeddings", shape, initializer=reserve)
        super().build(input_shape)

    def call(self, rows: Any, training: bool = False) -> Any:
        """Look up rows, [b, F] -> [b, F, dim]."""
        if training and self.row_sync is not None:
            self.row_sync.refuse_without_table()
        found = tf.gather(self.table, rows)
        if self.row_sync is None or not self.row_sync.zero_rows:
            return found
        # With a gradient of zeros, L2, the clip and Adam do not change a row of zeros.
        absent = tf.expand_dims(rows < self.row_sync.zero_rows, -1)
        return tf.where(absent, tf.zeros_like(found), found)

    def table_layouts(self) -> list[tuple[Any, TableLayout]]:
        """Return [], since each row may belong to any field."""
        return []

    def _trackable_children(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse checkpoints of the whole table, for which TensorFlow calls this method."""
        if self.row_sync is not None:
            self.row_sync.refuse_growing("a checkpoint")
        return super()._trackable_children(*args, **kwargs)
