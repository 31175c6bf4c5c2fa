"""Embedding tables of all fields: one variable for all, or one for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.models.tensorflow_names import variable_names

tf = compat.tensorflow()


def initial_rows(rows: int, dim: int, *, std: float, seed: int, field: int) -> Any:
    """Normal numbers [rows, dim] that depend only on the seed, the field's index and the size."""
    return std * tf.random.stateless_normal([rows, dim], seed=[seed, field])


class Current:
    """A layer whose weights, asked for or replaced by Keras's methods, are up to date."""

    before_all: Callable[[], None] | None = None  # brings all rows up to date

    def get_weights(self) -> list[Any]:
        """As in Keras, tables up to date."""
        if self.before_all is not None:
            self.before_all()
        return super().get_weights()

    def set_weights(self, weights: list[Any]) -> None:
        """As in Keras; steps that rows had missed do not move the new weights."""
        if self.before_all is not None:
            self.before_all()
        super().set_weights(weights)


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class FusedEmbedding(Current, tf.keras.layers.Layer):
    """One table for all fields; field `f` has the rows from its offset on.

    A batch is one gather, so the gradient is one `tf.IndexedSlices` with an entry for each of
    the b * F occurrences.

    An id beyond its own field's rows reads another field's row; the loader refuses such ids.

    Args:
        fields: field -> number of rows, in the order of the ids.
        dim: length of a row.
        std: standard deviation of the initial rows; 0 for zeros.
        seed: of the initial rows.
        prefix: goes before "embeddings" in the variable's name.
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
        self.fields, self.dim = dict(fields), dim
        self.std, self.seed, self.prefix = std, seed, prefix
        self.before_read: Callable[[int, Any], None] | None = None  # field, rows

    def build(self, input_shape: Any) -> None:
        """Create the table."""
        sizes = list(self.fields.values())
        self.offsets = [0, *accumulate(sizes)][:-1]

        def initial(shape: Any, dtype: Any = None, **_: Any) -> Any:
            return tf.concat([self._initial(f) for f in range(len(sizes))], axis=0)

        self.table = self.add_weight(
            f"{self.prefix}embeddings", [sum(sizes), self.dim], initializer=initial
        )
        super().build(input_shape)

    def _initial(self, field: int) -> Any:
        rows = list(self.fields.values())[field]
        return initial_rows(rows, self.dim, std=self.std, seed=self.seed, field=field)

    def call(self, ids: Any, training: bool = False) -> Any:
        """Rows of the ids, [b, F] -> [b, F, dim]."""
        return self._read(0, ids + tf.constant(self.offsets, ids.dtype), training)

    def _read(self, index: int, rows: Any, training: bool) -> Any:
        if self.before_read is not None and (training or tf.executing_eagerly()):
            self.before_read(index, rows)
        return tf.gather(self.table_at(index), rows)

    def table_at(self, index: int) -> Any:
        """The variable that field number `index` is read from."""
        return self.table

    def get_config(self) -> dict[str, Any]:
        """Arguments as plain values."""
        return super().get_config() | {
            "fields": self.fields,
            "dim": self.dim,
            "std": self.std,
            "seed": self.seed,
            "prefix": self.prefix,
        }


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class PerFieldEmbedding(FusedEmbedding):
    """One table for each field: the same numbers as `FusedEmbedding`, in F variables."""

    def build(self, input_shape: Any) -> None:
        """Create the tables."""
        names = variable_names(self.fields)
        self.tables = [
            self.add_weight(
                f"{names[field]}_{self.prefix}embeddings",
                [rows, self.dim],
                initializer=lambda shape, dtype=None, f=f, **_: self._initial(f),
            )
            for f, (field, rows) in enumerate(self.fields.items())
        ]
        self.built = True

    def call(self, ids: Any, training: bool = False) -> Any:
        """Rows of the ids, [b, F] -> [b, F, dim]."""
        rows = [self._read(f, ids[:, f], training) for f in range(len(self.tables))]
        return tf.stack(rows, axis=1)

    def table_at(self, index: int) -> Any:
        """The variable that field number `index` is read from."""
        return self.tables[index]
