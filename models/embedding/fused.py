"""Embedding tables: one variable for all fields, one for each, or a second one for some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.models.columns import spread
from cowclip_merlin.models.ctr_model import SyncedLayer
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import DType, JsonObject, Tensor, TensorShape, Variable

tf = compat.tensorflow()


EPOCH_SEED = 1 << 32
"""Added to the seed for each further draw; the seed of a run is smaller."""


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class FusedEmbedding(SyncedLayer, tf.keras.layers.Layer):
    """The rows of all fields, divided among tables. A table has the rows of its fields in order.

    A batch is one gather per table, so its gradient is a `tf.IndexedSlices` with an entry for each
    occurrence of an id. A field usually has one column of ids, but columns may share one. The first
    values do not depend on the division.

    An id outside of its field's rows reads another field's row; the loader refuses such ids.

    Args:
        fields: field -> number of rows, in the order of the rows.
        dim: length of a row.
        std: standard deviation of the initial rows; 0 for zeros.
        seed: random seed of the initial rows.
        prefix: of "embeddings" in the name of the only variable.
        field_of_column: number of the field of each column of ids; None: column f is field f.
        tables: name of a variable -> its fields; None: one for all.
        frozen: variables that are not trainable.
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
        tables: Mapping[str, Sequence[str]] | None = None,
        frozen: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**({"dtype": "float32"} | kwargs))
        self.layout, self.dim = TableLayout(fields), dim
        self.std, self.seed, self.prefix = std, seed, prefix
        self.field_of_column = list(field_of_column or range(len(self.layout.fields)))
        divided = {f"{prefix}embeddings": list(fields)} if tables is None else tables
        self.names, self.frozen = {k: list(v) for k, v in divided.items()}, tuple(frozen)
        self.parts = [TableLayout({f: fields[f] for f in part}) for part in self.names.values()]
        place = {
            field: (number, first)
            for number, part in enumerate(self.parts)
            for field, first in zip(part.fields, part.offsets)
        }
        self.place = [place[field] for field in fields]

    def build(self, input_shape: TensorShape) -> None:
        """Create the tables."""
        self.tables = [self._create(*each) for each in zip(self.names, self.parts)]
        self.built = True

    def _create(self, name: str, part: TableLayout) -> Variable:
        fields, shape = list(self.layout.fields), [part.rows, self.dim]

        def initial(shape: Sequence[int], dtype: DType | None = None, **_: Any) -> Tensor:
            return tf.concat([self._initial(fields.index(field)) for field in part.fields], axis=0)

        return self.add_weight(name, shape, initializer=initial, trainable=name not in self.frozen)

    def _initial(self, field: int, epoch: int = 0) -> Tensor:
        """Draw the rows of a field; they depend only on its index and size, seed and epoch."""
        rows, seed = list(self.layout.fields.values())[field], self._seed(field, epoch)
        return self.std * tf.random.stateless_normal([rows, self.dim], seed=seed)

    def _seed(self, field: int, epoch: int) -> list[int]:
        return [self.seed + EPOCH_SEED * epoch, field]

    def redraw(self, epoch: int) -> list[Variable]:
        """Draw all rows that train anew; return their tables.

        Args:
            epoch: number of the draw. `build` makes draw 0.
        """
        fields, trained = list(self.layout.fields), []
        for table, layout in self.table_layouts():
            for name, first in zip(layout.fields, layout.offsets) if table.trainable else ():
                values = self._initial(fields.index(name), epoch)
                self._update(table, tf.range(first, first + len(values)), values)
            trained += [table] if table.trainable else []
        return trained

    def call(self, ids: Ids, training: bool = False) -> Tensor:
        """Look up the row of each id, [b, F, dim], or [m, dim] with multi-valued columns."""
        rows = self.rows_of(ids)
        if len(self.tables) == 1:
            return self._read(0, rows, training)
        tables = [self.place[field][0] for field in self.field_of_column]
        if ids.lengths is None and tables == list(range(len(self.tables))):
            return tf.stack([self._read(t, rows[:, t], training) for t in tables], axis=1)
        return self._read_tables(spread(tf.constant(tables), ids), rows, training)

    def rows_of(self, ids: Ids) -> Tensor:
        """Return the rows of the ids in their tables, of the shape of `ids.values`."""
        return ids.values + spread(tf.constant(self.offset_of_column, ids.values.dtype), ids)

    @property
    def offset_of_column(self) -> list[int]:
        """The first row of each column of ids in its table."""
        return [self.place[field][1] for field in self.field_of_column]

    def _read_tables(self, table: Tensor, rows: Tensor, training: bool) -> Tensor:
        """Read each table once, also if columns share it; `table` is the number of each row's."""
        table = tf.reshape(table + tf.zeros_like(rows, tf.int32), [-1])
        values = tf.reshape(rows, [-1])
        places = tf.dynamic_partition(tf.range(tf.size(values)), table, len(self.tables))
        parts = enumerate(tf.dynamic_partition(values, table, len(self.tables)))
        found = tf.dynamic_stitch(places, [self._read(t, part, training) for t, part in parts])
        if rows.shape.rank == 1:
            return found
        return tf.reshape(found, [-1, len(self.field_of_column), self.dim])

    def _read(self, index: int, rows: Tensor, training: bool) -> Tensor:
        self._before_read(index, rows, training)
        return tf.gather(self.tables[index], rows)

    def _before_read(self, index: int, rows: Tensor, training: bool) -> None:
        if self.row_sync is not None and (training or tf.executing_eagerly()):
            self.row_sync.before_read(self, index, rows)

    @property
    def table(self) -> Variable:
        """The only table."""
        (table,) = self.tables
        return table

    def whole_rows(self, index: int, rows: Tensor) -> Tensor:
        """Return the numbers of rows of table number `index` among all rows, int64 [u]."""
        part, first = self.parts[index], dict(zip(self.layout.fields, self.layout.offsets))
        shifts = [first[field] - offset for field, offset in zip(part.fields, part.offsets)]
        rows = tf.cast(rows, tf.int64)
        field = tf.searchsorted(tf.constant(part.offsets, tf.int64), rows, side="right") - 1
        return rows + tf.gather(tf.constant(shifts, tf.int64), field)

    def set_rows(self, field: int, ids: Tensor, values: Tensor) -> None:
        """Set some rows of a field, before any training.

        Args:
            field: index of the field.
            ids: of the field, int64 [k].
            values: [k, dim].
        """
        number, first = self.place[field]
        self._update(self.tables[number], ids + first, values)

    @staticmethod
    def _update(table: Variable, rows: Tensor, values: Tensor) -> None:
        table.scatter_update(tf.IndexedSlices(values, rows))

    def table_layouts(self) -> list[tuple[Variable, TableLayout]]:
        """List each variable with its fields; return [] before the layer is built."""
        return list(zip(self.tables, self.parts)) if self.built else []

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | {
            "fields": dict(self.layout.fields),
            "dim": self.dim,
            "std": self.std,
            "seed": self.seed,
            "prefix": self.prefix,
            "field_of_column": list(self.field_of_column),
            "tables": {name: list(fields) for name, fields in self.names.items()},
            "frozen": list(self.frozen),
        }
