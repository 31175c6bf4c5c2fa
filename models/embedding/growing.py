"""An embedding table that grows, and drops rows."""

from __future__ import annotations

from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.models.row_sync import SyncedLayer
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.tables.variables import reserve
from cowclip_merlin.types import Tensor, TensorShape, Variable

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
