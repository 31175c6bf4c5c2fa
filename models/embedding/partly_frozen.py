"""One embedding table for all fields but some, whose embeddings stay as they start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.columns import spread
from cowclip_merlin.models.embedding.fused import FusedEmbedding, read_parts
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import DType, JsonObject, Tensor, TensorShape, Variable

tf = compat.tensorflow()


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
