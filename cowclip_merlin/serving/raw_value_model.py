"""A model and its workflow in one TensorFlow graph: raw values in, predictions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.models.multi_task import values_by_label
from cowclip_merlin.serving.triton.model import OUTPUT
from cowclip_merlin.system.console import progress
from cowclip_merlin.types import HashTable, RaggedTensor, Tensor
from cowclip_merlin.workflows import id_to_value
from cowclip_merlin.workflows.prepared.counts import FIRST_VALUE, SPECIAL
from cowclip_merlin.workflows.raw.values.value_text import DIGITS, WHOLE_FLOAT

if TYPE_CHECKING:
    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.workflows import PreparedData
    from cowclip_merlin.workflows.raw.log_format import LogFormat

tf = compat.tensorflow()

_VALUES_AT_ONCE = 1 << 20  # Python strings that are copied to a table in one step


class RawValueModel(tf.Module):
    """Computes what `data.workflow()` and then the model compute, in TensorFlow alone.

    A row with a number that 32 bits cannot hold after scaling gets NaN. Column number i of those
    with lists has two inputs: `values_<i>`, strings [m], and `lengths_<i>`, int32 [b]. Column
    number i of those with vectors has `vectors_<i>`, float32 [b, length]. The output "values",
    float32 [b, T], has the probability or number of each target.

    The vocabularies are lookup tables, whose values lie with the weights when it is saved.

    Args:
        model: Keras model that takes one tensor [b] per column, of lists a ragged one, of vectors
            [b, length].
        data: the folder that the model was trained on.
    """

    def __init__(self, model: CTRModel, data: PreparedData) -> None:
        super().__init__("raw_value_model")
        self._data = data
        self._weights = list(model.variables)  # so that they are saved, without Keras's layers
        self._outputs = lambda columns: values_by_label(model, columns)
        layout = data.log_format
        of_table = {}
        with progress(sum(data.tables.values()), desc="values", unit="id") as bar:
            for name, ids in data.tables.items():
                of_table[name] = vocabulary(id_to_value(data, name))
                bar.update(ids)
        self._vocabularies = list(of_table.values())
        self._known = {name: of_table[layout.table_of(name)] for name in data.categorical}
        lists, numbers = list(layout.multi), list(data.continuous)
        fields = [name for name in data.categorical if name not in layout.multi]
        inputs = [
            tf.TensorSpec([None, len(fields)], tf.string, "categorical"),
            tf.TensorSpec([None, len(numbers)], tf.float64, "continuous"),
        ]
        for i in range(len(lists)):
            inputs.append(tf.TensorSpec([None], tf.string, f"values_{i}"))
            inputs.append(tf.TensorSpec([None], tf.int32, f"lengths_{i}"))
        for i, length in enumerate(layout.vectors.values()):
            inputs.append(tf.TensorSpec([None, length], tf.float32, f"vectors_{i}"))

        @tf.function(input_signature=inputs, autograph=False)
        def serve(categorical: Tensor, continuous: Tensor, *others: Tensor) -> dict[str, Tensor]:
            of_lists, vectors = others[: 2 * len(lists)], others[2 * len(lists) :]
            texts = dict(zip(fields, tf.unstack(categorical, len(fields), axis=1)))
            given = dict(zip(lists, zip(of_lists[::2], of_lists[1::2])))
            found = self.values(texts, continuous, given, dict(zip(layout.vectors, vectors)))
            return {OUTPUT: tf.stack(list(found.values()), axis=1)}

        self.serve = serve

    def values(
        self,
        texts: Mapping[str, Tensor],
        numbers: Tensor,
        lists: Mapping[str, tuple[Tensor, Tensor]],
        vectors: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Return the probability or number of each target, by label, float32 [b].

        Args:
            texts: column -> string [b]; an empty one is missing.
            numbers: of the continuous columns, float64 [b, C]; NaN is missing.
            lists: column -> string [m], and how many of them each row has, int32 [b].
            vectors: column -> float32 [b, length].
        """
        data, layout, known = self._data, self._data.log_format, self._known
        columns = {
            name: ids_of(whole(text, name, layout), known[name]) for name, text in texts.items()
        }
        for name, (values, lengths) in lists.items():
            values = whole(values, name, layout)
            ids = without_missing(values, known[name].lookup(values), lengths)
            columns[name] = cut(ids, layout)
        x = scaled(numbers, _ranges(data), log=data.recipe.log)
        fits = tf.reduce_all(tf.math.is_finite(x), axis=1)
        # Or the rows of other requests would fail, too.
        x = tf.where(fits[:, tf.newaxis], x, tf.zeros_like(x))
        columns |= dict(zip(data.continuous, tf.unstack(x, len(data.continuous), axis=1)))
        columns |= vectors
        found = self._outputs(columns)
        return {name: tf.where(fits, each, np.float32("nan")) for name, each in found.items()}


def whole(texts: Tensor, column: str, log_format: LogFormat) -> Tensor:
    """Read "47.0" as "47", as `prepare` does, unless the log keeps the column's text."""
    if log_format.keeps_text(column):
        return texts
    return tf.strings.regex_replace(texts, WHOLE_FLOAT, DIGITS)


def without_missing(values: Tensor, ids: Tensor, lengths: Tensor) -> RaggedTensor:
    """Return the ids of each row without those of empty strings, a ragged tensor [b, ids].

    Args:
        values: string [m].
        ids: their ids, int64 [m].
        lengths: number of values of each row, int32 [b].

    >>> without_missing(tf.constant(["a", "", "b"]), tf.constant([3, 1, 4]), [2, 0, 1]).to_list()
    [[3], [], [4]]
    """
    lists = tf.RaggedTensor.from_row_lengths(ids, lengths)
    return tf.ragged.boolean_mask(lists, lists.with_values(tf.not_equal(values, "")))


def cut(lists: RaggedTensor, log_format: LogFormat) -> RaggedTensor:
    """Keep the first or last values of each row, as `prepare` does with `max_values`.

    Args:
        lists: ragged [b, ids].
        log_format: how many to keep, and which.
    """
    most = log_format.max_values
    if most:
        lists = lists[:, :most] if log_format.keep_values == "first" else lists[:, -most:]
    return lists.with_values(tf.reshape(lists.values, [-1]))  # whose rank Merlin asks for


def vocabulary(values: Sequence[str | None]) -> HashTable:
    """Make the lookup table of a field: text -> id, int64.

    Args:
        values: the value of each id, as `id_to_value` returns them.

    >>> vocabulary([None, None, None, "cook", "nurse"]).lookup(tf.constant(["nurse", "?"])).numpy()
    array([4, 2])
    """
    # A `StaticHashTable` would put its values into the graph, which must not exceed 2 GB.
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, SPECIAL["oov"])
    for start in range(FIRST_VALUE, len(values), _VALUES_AT_ONCE):
        texts = tf.constant(values[start : start + _VALUES_AT_ONCE], tf.string)
        table.insert(texts, tf.range(start, start + len(texts), dtype=tf.int64))
    return table


def ids_of(text: Tensor, table: HashTable) -> Tensor:
    """Look up the ids of a field, int64 [b]; an empty string is a missing value.

    Args:
        text: string [b].
        table: the field's `vocabulary`.
    """
    ids = tf.where(tf.equal(text, ""), tf.constant(SPECIAL["null"], tf.int64), table.lookup(text))
    ids.set_shape(text.shape)  # the lookup has none, but Merlin asks for it
    return ids


def scaled(x: Tensor, ranges: tuple[Sequence[float], Sequence[float]], *, log: bool) -> Tensor:
    """Scale numbers as NVTabular's operators FillMissing, Clip, LogOp and NormalizeMinMax do.

    TensorFlow takes numbers nearer to 0 than 2.2e-308 as 0.

    Args:
        x: float64 [b, C]; NaN is a missing value.
        ranges: smallest and largest value of each column; of their logarithms with `log`.
        log: whether to take log(1 + max(x, 0)) first.

    Returns:
        float32 [b, C].

    >>> scaled(tf.constant([[2.0, float("nan")]], tf.float64), ([0.0, -1.0], [8.0, 1.0]), log=False)
    <tf.Tensor: shape=(1, 2), dtype=float32, numpy=array([[0.25, 0.5 ]], dtype=float32)>
    """
    x = _without_nan(x)
    if log:  # LogOp computes in float32
        x = tf.math.log(tf.cast(tf.maximum(x, 0), tf.float32) + 1)
    low, high = (tf.constant(limit, tf.float64, [len(limit)]) for limit in ranges)
    # NormalizeMinMax divides x by 2 x if all values were equal.
    between = (x - tf.cast(low, x.dtype)) / tf.cast(high - low, x.dtype)
    x = tf.where(high > low, between, x / (2 * x))
    return tf.cast(_without_nan(x), tf.float32)


def _without_nan(x: Tensor) -> Tensor:
    return tf.where(tf.math.is_nan(x), tf.zeros_like(x), x)


def _ranges(data: PreparedData) -> tuple[Sequence[float], Sequence[float]]:
    def limits(found: Mapping[str, float]) -> Sequence[float]:
        return [found[name] for name in data.continuous]

    return limits(data.statistics.minimum), limits(data.statistics.maximum)
