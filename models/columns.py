"""Find the columns of a model in a Merlin schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError

tf = compat.tensorflow()


@dataclass(frozen=True)
class Columns:
    """Columns of a click log in model order.

    Attributes:
        fields: categorical column -> number of rows in its table (largest id + 1).
        continuous: names of the continuous columns.
        target: name of the 0/1 column.
    """

    fields: dict[str, int]
    continuous: tuple[str, ...]
    target: str

    @classmethod
    def from_schema(cls, schema: Any, rows: int | None = None) -> Columns:
        """Read the tags and domains of a Merlin schema.

        Args:
            schema: Merlin schema.
            rows: number of rows of a growing table, which all fields share; None: use the
                domains of the columns.

        Raises:
            InputError: if the schema has no target or no categorical column, or a categorical
                column has no integer domain.
        """
        from merlin.schema import Tags

        targets = schema.select_by_tag(Tags.TARGET).column_names
        targets = targets or schema.select_by_tag(Tags.BINARY_CLASSIFICATION).column_names
        if not targets:
            raise InputError("the schema has no column tagged TARGET; tag the 0/1 column")
        categorical = schema.select_by_tag(Tags.CATEGORICAL)
        if not categorical.column_names:
            raise InputError("the schema has no column tagged CATEGORICAL; tag the id columns")
        return cls(
            fields={name: rows or _rows(categorical[name]) for name in categorical.column_names},
            continuous=tuple(schema.select_by_tag(Tags.CONTINUOUS).column_names),
            target=targets[0],
        )

    def stack(self, inputs: dict[str, Any]) -> tuple[Any, Any]:
        """Stack a batch to ids [b, F], integer, and continuous features [b, C], float32.

        Args:
            inputs: one tensor [b] or [b, 1] per column, or the stacked entries "categorical"
                [b, F] and "continuous" [b, C], whose numbers the caller has checked.

        Raises:
            tf.errors.InvalidArgumentError: if a number of a column is not finite.
        """
        if self._stacked(inputs):
            ids = _integer(inputs["categorical"])
            x = inputs.get("continuous", tf.zeros([tf.shape(ids)[0], 0]))
        else:
            ids = _side_by_side([_integer(inputs[name]) for name in self.fields])
            parts = [_finite(inputs[name], name) for name in self.continuous]
            x = _side_by_side(parts) if parts else tf.zeros([tf.shape(ids)[0], 0])
        x = tf.cast(x, tf.float32)
        x.set_shape([None, len(self.continuous)])
        return ids, x

    def _stacked(self, inputs: dict[str, Any]) -> bool:
        """Whether the batch is stacked; a column named "categorical" comes with all others."""
        if "categorical" not in inputs:
            return False
        return not all(name in inputs for name in (*self.fields, *self.continuous))


def _rows(column: Any) -> int:
    domain = column.int_domain
    if domain is None or not domain.max:
        raise InputError(
            f"column {column.name!r} has no integer domain; set its largest id in the schema"
        )
    return int(domain.max) + 1


def _finite(x: Any, name: str) -> Any:
    """Convert numbers to float32; refuse NaN, which the ReLU of a hidden layer takes as 0."""
    words = f"column {name!r} has a number that is not finite; fill missing numbers as in training"
    return tf.debugging.check_numerics(tf.cast(x, tf.float32), words)


def _integer(x: Any) -> Any:
    """Convert ids to int64, or keep int32 if TensorFlow uses no GPU.

    On a GPU, TensorFlow computes int32 in the host's memory, which would copy each batch twice.
    """
    x = tf.convert_to_tensor(x)
    narrow = x.dtype == tf.int32 and not tf.config.list_logical_devices("GPU")
    return x if narrow else tf.cast(x, tf.int64)


def _side_by_side(parts: list[Any]) -> Any:
    wide = tf.int64 if any(p.dtype == tf.int64 for p in parts) else parts[0].dtype
    return tf.concat([tf.reshape(tf.cast(p, wide), [-1, 1]) for p in parts], axis=1)
