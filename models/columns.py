"""Columns of a model: find them in a Merlin schema, stack a batch, combine ids of a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.checks import one_of
from cowclip_merlin.choices import COMBINER_POWERS
from cowclip_merlin.errors import InputError
from cowclip_merlin.targets import Scales, Target, targets_of
from cowclip_merlin.types import Operation, RaggedTensor, Tensor

if TYPE_CHECKING:
    from merlin.schema import ColumnSchema, Schema

tf = compat.tensorflow()


@dataclass(frozen=True)
class Columns:
    """Columns of a click log in model order.

    Attributes:
        fields: categorical column -> number of rows in its table (largest id + 1).
        continuous: names of the continuous columns.
        target: name of the 0/1 column.
        combiners: multi-valued column -> "sum", "mean" or "sqrtn", as in
            `tf.nn.embedding_lookup_sparse`. Other columns have one id per row.
        vectors: continuous column with a vector per row -> its length. Others have one number.
        tables: column -> name of the embedding table that it shares with other columns. Any other
            column has a table of its own name.
        more_targets: names of the labels of further targets.
        regression: names of those labels that are numbers.
        scales: label that is a number -> mean and spread of its values in training.

    Raises:
        InputError: if a combiner is unknown, or columns of one table have other numbers of rows.
    """

    fields: dict[str, int]
    continuous: tuple[str, ...]
    target: str
    combiners: Mapping[str, str] = field(default_factory=dict)
    vectors: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    more_targets: Sequence[str] = ()
    regression: Sequence[str] = ()
    scales: Scales = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the combiners and the tables."""
        for combiner in self.combiners.values():
            one_of("combiner", combiner, COMBINER_POWERS)
        rows = self.table_rows
        for name, size in self.fields.items():
            table = self.tables.get(name, name)
            if size != rows[table]:
                raise InputError(
                    f"column {name!r} has {size} ids, but the table {table!r}, which it shares by "
                    f"the name of its domain, has {rows[table]}; give them one vocabulary, or other"
                    " names"
                )

    @property
    def table_rows(self) -> dict[str, int]:
        """Embedding table -> its rows, in the order of the tables' first columns.

        >>> shared = {"item": "item", "liked": "item"}
        >>> columns = Columns({"item": 3, "user": 5, "liked": 3}, (), "click", tables=shared)
        >>> columns.table_rows, columns.table_of_field
        ({'item': 3, 'user': 5}, [0, 1, 0])
        """
        found: dict[str, int] = {}
        for name, rows in self.fields.items():
            found.setdefault(self.tables.get(name, name), rows)
        return found

    @property
    def table_of_field(self) -> list[int]:
        """The number of the table of each categorical column."""
        names = list(self.table_rows)
        return [names.index(self.tables.get(name, name)) for name in self.fields]

    @property
    def targets(self) -> tuple[Target, ...]:
        """What the model predicts."""
        return targets_of([self.target, *self.more_targets], self.regression)

    @property
    def combiner_of_field(self) -> list[str]:
        """The combiner of each categorical column; the sum of one embedding is itself."""
        return [self.combiners.get(name, "sum") for name in self.fields]

    @property
    def widths(self) -> dict[str, int]:
        """Continuous column -> numbers of a row."""
        return {name: self.vectors.get(name, 1) for name in self.continuous}

    @classmethod
    def from_schema(
        cls, schema: Schema, rows: int | None = None, *, several: bool = False
    ) -> Columns:
        """Read the tags and domains of a Merlin schema.

        A categorical list column is multi-valued. Its property "combiner" names the combiner;
        default: "mean". A continuous list column has vectors of one length, its "value_count".
        Columns whose domains have one name share a table, as in Merlin Models. NVTabular gives
        one name to the columns that its Categorify encodes jointly.

        A label that is a number may have the properties "mean" and "spread" of the training rows,
        as in folders of `cowclip prepare`; default: 0 and 1.

        Args:
            schema: Merlin schema.
            rows: number of rows of a growing table, which all fields share; None: use the
                domains of the columns.
            several: take all targets, or one that is a number; else the first one, as a label of 0
                and 1.

        Raises:
            InputError: if the schema has no target (or with `several` only one label of 0 and 1) or
                no categorical
                column, a categorical column has no integer domain, or the combiner of a list
                column is unknown.
        """
        from merlin.schema import Tags

        targets = schema.select_by_tag(Tags.TARGET).column_names
        targets = targets or schema.select_by_tag(Tags.BINARY_CLASSIFICATION).column_names
        if not targets:
            raise InputError("the schema has no column tagged TARGET; tag the 0/1 column")
        numbers = schema.select_by_tag(Tags.REGRESSION).column_names if several else []
        if several and len(targets) < 2 and targets[0] not in numbers:
            raise InputError(
                f"multi_task needs several targets, but only {targets[0]!r} is tagged TARGET; tag "
                "more label columns, or REGRESSION if it is a number, or leave multi_task out"
            )
        categorical = schema.select_by_tag(Tags.CATEGORICAL)
        if not categorical.column_names:
            raise InputError("the schema has no column tagged CATEGORICAL; tag the id columns")
        tables = {column.name: _domain_name(column) for column in categorical}
        names = list(tables.values())
        return cls(
            fields={name: rows or _rows(categorical[name]) for name in categorical.column_names},
            continuous=tuple(schema.select_by_tag(Tags.CONTINUOUS).column_names),
            target=targets[0],
            combiners={
                column.name: column.properties.get("combiner", "mean")
                for column in categorical
                if column.is_list
            },
            vectors={
                column.name: _length(column)
                for column in schema.select_by_tag(Tags.CONTINUOUS)
                if column.is_list
            },
            tables={column: name for column, name in tables.items() if names.count(name) > 1},
            more_targets=tuple(targets[1:]) if several else (),
            regression=tuple(name for name in targets if name in numbers),
            scales={
                name: [float(schema[name].properties[key]) for key in ("mean", "spread")]
                for name in targets
                if name in numbers and "spread" in schema[name].properties
            },
        )

    def stack(
        self, inputs: Batch | dict[str, Tensor], *, keep_type: bool = False
    ) -> tuple[Ids, Tensor]:
        """Stack a batch to ids, and continuous features [b, C], float32.

        Args:
            inputs: a `Batch`, or one tensor [b] or [b, 1] per column ([b, length] of vectors), or
                the stacked entries "categorical", ids [b, F] or `Ids`, and "continuous" [b, C].
                A multi-valued column is ragged, or a matrix [b, ids] whose rows 0 fills up.
                The caller has checked the numbers that are stacked, and the ids of a `Batch`.
            keep_type: whether ids stay as they are, and are not converted for TensorFlow's lookups.

        Raises:
            tf.errors.InvalidArgumentError: if a number of a column is not finite, or an id is
                outside of its column's table. XLA has no errors; see `outside`.
        """
        if isinstance(inputs, Batch):
            ids, x = inputs.ids, inputs.numbers
        elif self._stacked(inputs):
            ids, x = inputs["categorical"], inputs.get("continuous")
        else:
            ids = self._ids({name: inputs[name] for name in self.fields})
            parts = [self._numbers(inputs[name], name) for name in self.continuous]
            x = tf.concat(parts, axis=1) if parts else None
        ids = ids if isinstance(ids, Ids) else Ids(ids)
        ids = ids if keep_type else ids.with_values(_integer(ids.values))
        if not isinstance(inputs, Batch) and not compat.in_xla():
            ids = self._within_tables(ids)
        x = tf.zeros([_number_of_rows(ids), 0]) if x is None else tf.cast(x, tf.float32)
        x.set_shape([None, sum(self.widths.values())])
        return ids, x

    def outside(self, ids: Ids) -> Tensor:
        """Return which ids are outside of their column's table, bool of the shape of the values.

        In one table for all columns, such an id has a row of another column.
        """
        sizes = spread(tf.constant(list(self.fields.values()), ids.values.dtype), ids)
        return (ids.values < 0) | (ids.values >= sizes)

    def _within_tables(self, ids: Ids) -> Ids:
        """Refuse ids outside of their column's table before anything reads them."""
        wrong = self.outside(ids)

        def refuse() -> Operation:
            place = tf.where(wrong)[0]
            column = place[1] if ids.lengths is None else tf.gather(fields_of(ids), place[0])
            name = tf.gather(tf.constant(list(self.fields)), column)
            last = tf.gather(tf.constant([*self.fields.values()], tf.int64), column) - 1
            value, last = map(tf.strings.as_string, (tf.gather_nd(ids.values, place), last))
            words = ["column ", name, " has the id ", value, ", but its table has the ids 0 to "]
            words += [last, "; give unknown values an id of their own there"]
            return tf.raw_ops.Assert(condition=False, data=[tf.strings.join(words)], summarize=1)

        with tf.control_dependencies([tf.cond(tf.reduce_any(wrong), refuse, tf.no_op)]):
            return ids.with_values(tf.identity(ids.values))

    def _numbers(self, x: Tensor | RaggedTensor, name: str) -> Tensor:
        """Return the finite numbers of a column, float32 [b, 1], or [b, length] of vectors."""
        if isinstance(x, tf.RaggedTensor):  # as Merlin's loader gives lists
            words = f"column {name!r} has a vector of another length than {self.vectors.get(name)}"
            same = tf.debugging.assert_equal(
                x.row_lengths(), tf.cast(self.widths[name], x.row_splits.dtype), words
            )
            with tf.control_dependencies([same]):
                x = tf.identity(x.flat_values)
        elif name in self.vectors:  # to which Merlin may add an axis of length 1
            x = tf.reshape(x, [tf.shape(x)[0], tf.reduce_prod(tf.shape(x)[1:])])
            x = tf.ensure_shape(x, [None, self.vectors[name]])
        return tf.reshape(_finite(x, name), [-1, self.widths[name]])

    def _ids(self, columns: dict[str, Tensor]) -> Ids:
        if not self.combiners:
            return Ids(_side_by_side([_integer(x) for x in columns.values()]))
        lists = [(_lists if c in self.combiners else _one_each)(x) for c, x in columns.items()]
        rows = tf.stack(lists, axis=1)  # ragged [b, F, number of ids]
        lengths = tf.reshape(rows.values.row_lengths(), [-1, len(lists)])
        return Ids(rows.flat_values, tf.cast(lengths, tf.int32))

    def _stacked(self, inputs: dict[str, Tensor]) -> bool:
        """Whether the batch is stacked; a column named "categorical" comes with all others."""
        if "categorical" not in inputs:
            return False
        return not all(name in inputs for name in (*self.fields, *self.continuous))


def _domain_name(column: ColumnSchema) -> str:
    return (column.properties.get("domain") or {}).get("name") or column.name


def _rows(column: ColumnSchema) -> int:
    domain = column.int_domain
    if domain is None or not domain.max:
        raise InputError(
            f"column {column.name!r} has no integer domain; set its largest id in the schema"
        )
    return int(domain.max) + 1


def _length(column: ColumnSchema) -> int:
    """Return the length of the vectors of a continuous list column."""
    count = column.properties.get("value_count") or {}
    if not count.get("max") or count.get("min") != count.get("max"):
        raise InputError(
            f"column {column.name!r} is continuous with lists of any length; give its vectors one "
            "length in the schema, as `value_count`"
        )
    return int(count["max"])


def _lists(x: Tensor) -> RaggedTensor:
    """Convert a multi-valued column to lists of ids, a ragged tensor [b, number of ids], int64.

    A dense id of 0 is left out: it fills up a row, and NVTabular gives it to no value.

    Args:
        x: ragged or dense [b, number of ids], to which Merlin may add an axis of length 1; or [b].
    """
    x = tf.cast(x, tf.int64)
    if isinstance(x, tf.RaggedTensor):
        return x.with_values(tf.reshape(x.values, [-1])).with_row_splits_dtype(tf.int64)
    x = tf.reshape(x, [tf.shape(x)[0], tf.reduce_prod(tf.shape(x)[1:])])
    return tf.ragged.boolean_mask(x, x != 0)


def _one_each(x: Tensor) -> RaggedTensor:
    """Convert a column of one id per row to lists of one id."""
    return tf.RaggedTensor.from_tensor(tf.reshape(tf.cast(x, tf.int64), [-1, 1]))


def _number_of_rows(ids: Ids) -> Tensor:
    return tf.shape(ids.values if ids.lengths is None else ids.lengths)[0]


def _finite(x: Tensor, name: str) -> Tensor:
    """Convert numbers to float32; refuse NaN, which the ReLU of a hidden layer takes as 0."""
    words = f"column {name!r} has a number that is not finite; fill missing numbers as in training"
    return tf.debugging.check_numerics(tf.cast(x, tf.float32), words)


def _integer(x: Tensor) -> Tensor:
    """Convert ids to int64, or keep int32 if TensorFlow uses no GPU.

    On a GPU, TensorFlow computes int32 in the host's memory, which would copy each batch twice.
    """
    x = tf.convert_to_tensor(x)
    narrow = x.dtype == tf.int32 and not tf.config.list_logical_devices("GPU")
    return x if narrow else tf.cast(x, tf.int64)


def _side_by_side(parts: list[Tensor]) -> Tensor:
    wide = tf.int64 if any(p.dtype == tf.int64 for p in parts) else parts[0].dtype
    return tf.concat([tf.reshape(tf.cast(p, wide), [-1, 1]) for p in parts], axis=1)


def cells_of(ids: Ids) -> Tensor:
    """Return `row * F + column` of every id of multi-valued columns, ascending, int32 [m]."""
    return compat.part_numbers(tf.reshape(ids.lengths, [-1]))


def fields_of(ids: Ids) -> Tensor:
    """Return the index of its column for every id of multi-valued columns, int32 [m]."""
    return cells_of(ids) % ids.num_fields


def spread(numbers: Tensor, ids: Ids) -> Tensor:
    """Spread one number per column [F] over the ids, to a shape that adds to `ids.values`."""
    return numbers if ids.lengths is None else tf.gather(numbers, fields_of(ids))


def combined(found: Tensor, ids: Ids, combiners: Sequence[str]) -> Tensor:
    """Combine the embedding rows of each row and column; no id gives zeros.

    The gradient has an entry for each id, so an id that is twice in a list counts twice.

    Args:
        found: embedding rows of the ids, [b, F, d], or [m, d] with multi-valued columns.
        ids: the ids.
        combiners: name in `choices.COMBINER_POWERS` for each column.

    Returns:
        One embedding for each row and column, [b, F, d].

    >>> ids = Ids(tf.constant([4, 4, 9]), tf.constant([[2, 1], [0, 0]]))
    >>> found = tf.constant([[1.0], [3.0], [5.0]])
    >>> combined(found, ids, ["mean", "sum"]).numpy().tolist()
    [[[2.0], [5.0]], [[0.0], [0.0]]]
    """
    if ids.lengths is None:
        return found
    sums = compat.sums_of_parts(found, cells_of(ids), tf.size(ids.lengths))
    lengths = tf.cast(tf.maximum(ids.lengths, 1), found.dtype)
    weights = tf.pow(
        lengths, tf.constant([-COMBINER_POWERS[each] for each in combiners], found.dtype)
    )
    shape = [-1, ids.num_fields, found.shape[-1]]
    return tf.reshape(sums, shape) * tf.expand_dims(weights, -1)
