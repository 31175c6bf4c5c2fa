"""Embedding tables: one variable for all fields, one for each, or one apart for frozen fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.compat.tensorflow_names import variable_names
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.columns import spread
from cowclip_merlin.models.ctr_model import SyncedLayer
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import DType, JsonObject, Tensor, TensorShape, Variable

tf = compat.tensorflow()


EPOCH_SEED = 1 << 32
"""Added to the seed for each further draw; the seed of a run is smaller."""


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
        return self._read(0, self.rows_of(ids), training)

    def rows_of(self, ids: Ids) -> Tensor:
        """Return the rows of the ids in the whole table, of the shape of `ids.values`."""
        offsets = tf.constant(self.offset_of_column, ids.values.dtype)
        return ids.values + spread(offsets, ids)

    @property
    def offset_of_column(self) -> list[int]:
        """The first row of each column of ids."""
        return [self.layout.offsets[field] for field in self.field_of_column]

    def _read(self, index: int, rows: Tensor, training: bool) -> Tensor:
        self._before_read(index, rows, training)
        return tf.gather(self.table_at(index), rows)

    def _before_read(self, index: int, rows: Tensor, training: bool) -> None:
        if self.row_sync is not None and (training or tf.executing_eagerly()):
            self.row_sync.before_read(self, index, rows)

    def table_at(self, index: int) -> Variable:
        """Return the variable that contains the rows of field number `index`."""
        return self.table

    def whole_rows(self, index: int, rows: Tensor) -> Tensor:
        """Return the numbers of rows of table number `index` among all rows, int64 [u]."""
        return tf.cast(rows, tf.int64)

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
        return read_parts(self, of_field, ids.values, len(fields), training)

    def table_at(self, index: int) -> Variable:
        """Return the variable that contains the rows of field number `index`."""
        return self.tables[index]

    def whole_rows(self, index: int, rows: Tensor) -> Tensor:
        """Return the numbers in `FusedEmbedding` of rows of table number `index`, int64 [u]."""
        return tf.cast(rows, tf.int64) + self.layout.offsets[index]

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


def read_parts(
    layer: FusedEmbedding, table: Tensor, rows: Tensor, count: int, training: bool
) -> Tensor:
    """Read each table of a layer once, also if columns share it.

    Args:
        layer: the layer.
        table: number of the table of each row, int32 [F] or the shape of `rows`.
        rows: row of each id in its table, [b, F], or [m] with multi-valued columns.
        count: number of tables.
        training: as in Keras.

    Returns:
        [b, F, dim], or [m, dim].
    """
    table = tf.reshape(table + tf.zeros_like(rows, tf.int32), [-1])
    values = tf.reshape(rows, [-1])
    places = tf.dynamic_partition(tf.range(tf.size(values)), table, count)
    parts = tf.dynamic_partition(values, table, count)
    found = [layer._read(number, parts[number], training) for number in range(count)]
    found = tf.dynamic_stitch(places, found)
    if rows.shape.rank == 1:
        return found
    return tf.reshape(found, [-1, len(layer.field_of_column), layer.dim])


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class PartlyFrozenEmbedding(FusedEmbedding):
    """The rows of `FusedEmbedding` in two tables: those that train, and those of some fields.

    A part is one gather. Each part has its fields in order, with the values of `FusedEmbedding`.

    Args:
        *args: as for `FusedEmbedding`.
        apart: fields of the second table; not all.
        frozen: whether the second table is not trainable. First-order weights are divided in the
            same way, so that all layers read the same rows, but train.
        **kwargs: as for `FusedEmbedding`.

    Raises:
        InputError: if all fields are apart.
    """

    def __init__(self, *args: Any, apart: Sequence[str], frozen: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.apart, self.frozen = tuple(apart), frozen
        fields = self.layout.fields
        if not set(fields) - set(self.apart):
            raise InputError(
                "freeze_embeddings names the columns of all tables, and leaves no embeddings to "
                "train; leave one out"
            )
        names = [[n for n in fields if (n in self.apart) == part] for part in (False, True)]
        self.parts = [TableLayout({name: fields[name] for name in part}) for part in names]
        self._place = {
            name: (number, offset)
            for number, part in enumerate(self.parts)
            for name, offset in zip(part.fields, part.offsets)
        }

    def build(self, input_shape: TensorShape) -> None:
        """Create the tables."""
        self.tables = [self._table("", 0), self._table("apart_", 1)]
        self.built = True

    def _table(self, name: str, number: int) -> Variable:
        fields = list(self.layout.fields)

        def initial(shape: Sequence[int], dtype: DType | None = None, **_: Any) -> Tensor:
            part = self.parts[number].fields
            return tf.concat([self._initial(fields.index(field)) for field in part], axis=0)

        return self.add_weight(
            f"{self.prefix}{name}embeddings",
            [self.parts[number].rows, self.dim],
            initializer=initial,
            trainable=not (self.frozen and number),
        )

    def call(self, ids: Ids, training: bool = False) -> Tensor:
        """Look up the row of each id, [b, F, dim], or [m, dim] with multi-valued columns."""
        fields = list(self.layout.fields)
        places = [self._place[fields[field]] for field in self.field_of_column]
        part = spread(tf.constant([number for number, _ in places]), ids)
        offset = spread(tf.constant([first for _, first in places], ids.values.dtype), ids)
        return read_parts(self, part, ids.values + offset, len(self.parts), training)

    def table_at(self, index: int) -> Variable:
        """Return part number `index`."""
        return self.tables[index]

    def whole_rows(self, index: int, rows: Tensor) -> Tensor:
        """Return the numbers in `FusedEmbedding` of rows of a part, int64 [u]."""
        part, offsets = self.parts[index], dict(zip(self.layout.fields, self.layout.offsets))
        shifts = [offsets[name] - first for name, first in zip(part.fields, part.offsets)]
        rows = tf.cast(rows, tf.int64)
        field = tf.searchsorted(tf.constant(part.offsets, tf.int64), rows, side="right") - 1
        return rows + tf.gather(tf.constant(shifts, tf.int64), field)

    def table_layouts(self) -> list[tuple[Variable, TableLayout]]:
        """List each part with its fields; return [] before the layer is built."""
        return list(zip(self.tables, self.parts)) if self.built else []

    def set_rows(self, field: int, ids: Tensor, values: Tensor) -> None:
        """Set some rows of a field, as `FusedEmbedding.set_rows`."""
        number, offset = self._place[list(self.layout.fields)[field]]
        self._update(self.tables[number], ids + offset, values)

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | {"apart": list(self.apart), "frozen": self.frozen}
