"""The distinct rows of a batch: sum and count duplicates, or read all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import UniqueRows
from cowclip_merlin.types import DType, IndexedSlices, Pair, Tensor, Variable

tf = compat.tensorflow()


class CountedSlices(tf.IndexedSlices):
    """Gradients of rows of which each stands for several occurrences of its id.

    Args:
        values: summed gradients [n, d].
        indices: ids, integer [n]; an id may occur several times.
        counts: occurrences that each entry stands for, int32 [n].
        squares: sums over micro-batches of their squared gradients, [n, d]; None: not known.
    """

    def __init__(
        self, values: Tensor, indices: Tensor, counts: Tensor, squares: Tensor | None = None
    ) -> None:
        super().__init__(values, indices)
        self.counts, self.squares = counts, squares


def counts_of(slices: IndexedSlices) -> Tensor | None:
    """Return the occurrences that each entry stands for, int32 [n]; None if each is one."""
    return slices.counts if isinstance(slices, CountedSlices) else None


def counted_lookup(table: Variable, rows: Tensor, counts: Tensor) -> Tensor:
    """Look up rows of which each stands for several occurrences of its id, [n] -> [n, d].

    The gradient belongs to the handle of the table. If TensorFlow's custom gradient saw the
    variable, each step would read the whole table.

    Args:
        table: variable [N, d]; a step may look it up once.
        rows: integer [n].
        counts: occurrences that each row stands for, int32 [n].

    Returns:
        The rows. The gradient of the table is `CountedSlices` with these counts.

    >>> table = tf.Variable([[1.0], [2.0], [3.0]])
    >>> with tf.GradientTape() as tape:
    ...     found = counted_lookup(table, tf.constant([2, 0]), tf.constant([5, 1]))
    >>> found.numpy().tolist(), tape.gradient(found, table).counts.numpy().tolist()
    ([[3.0], [1.0]], [5, 1])
    """
    table = compat.stored(table)

    @tf.custom_gradient
    def lookup(handle: Tensor) -> tuple[Tensor, Callable[[Tensor], CountedSlices]]:
        found = tf.raw_ops.ResourceGather(resource=handle, indices=rows, dtype=table.dtype)
        found = tf.ensure_shape(found, [None, table.shape[1]])
        return found, lambda upstream: CountedSlices(upstream, rows, counts)

    tf.stop_gradient(tf.gather(table, rows[:0]))  # a tape watches a variable from a read of it on
    return lookup(table.handle)


def squares_of(slices: IndexedSlices, micro_batches: int) -> Tensor | None:
    """Return the squares of `CountedSlices`, [n, d]; None if they follow from the values.

    Raises:
        InputError: if the squares of several micro-batches are lost.
    """
    if micro_batches == 1 or not isinstance(slices, CountedSlices):
        return None
    if slices.squares is None:
        raise InputError(
            'micro-batches (rule "invariant") do not work with sharded tables on several workers, '
            'which exchange sums of whole batches; use tables="fused", or the rule "sde"'
        )
    return slices.squares


def sum_duplicates(slices: IndexedSlices, micro_batches: int | None = None) -> UniqueRows:
    """Sum the gradients of equal ids and count them (Algorithm 1, the data gradient and cnt).

    Args:
        slices: `tf.IndexedSlices` with one entry per occurrence, or `CountedSlices`, values
            [n, d].
        micro_batches: equal parts of the batch, for `UniqueRows.squares`; see
            `kernels.reference.micro_squares`; None: no squares.

    Returns:
        The distinct ids in order of first appearance, counts int32.

    >>> s = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([7, 3, 7]))
    >>> unique = sum_duplicates(s)
    >>> unique.ids.numpy().tolist(), unique.g.numpy().tolist(), unique.cnt.numpy().tolist()
    ([7, 3], [[5.0], [2.0]], [2, 1])
    """
    ids, position, cnt = tf.unique_with_counts(slices.indices)
    g = tf.math.unsorted_segment_sum(slices.values, position, tf.size(ids))
    counts = counts_of(slices)
    if counts is not None:
        cnt = tf.math.unsorted_segment_sum(counts, position, tf.size(ids))
    squares = None
    if micro_batches is not None:
        squares = _squares(slices, position, tf.size(ids), micro_batches)
    return UniqueRows(ids=ids, cnt=cnt, g=g, squares=squares)


def _squares(slices: IndexedSlices, position: Tensor, size: Tensor, micro_batches: int) -> Tensor:
    """Sum the squared gradients of the micro-batches for each distinct id, [u, d]."""
    known = squares_of(slices, micro_batches)
    if known is not None:
        return tf.math.unsorted_segment_sum(known, position, size)
    n = tf.size(position, tf.int64)
    part = tf.range(n) * micro_batches // n
    pairs, where = tf.unique(tf.cast(position, tf.int64) * micro_batches + part)
    sums = tf.math.unsorted_segment_sum(slices.values, where, tf.size(pairs))
    return tf.math.unsorted_segment_sum(tf.square(sums), pairs // micro_batches, size)


def flat_ids(ids: Tensor) -> Tensor:
    """Flatten the ids of a lookup to int32 or int64 [n], the type that Keras's layer looks up.

    Args:
        ids: any shape; a tensor, a list, a `tf.RaggedTensor` or a `tf.SparseTensor`.

    >>> flat_ids(tf.ragged.constant([[1.0], [], [2.0, 3.0]])).numpy().tolist()
    [1, 2, 3]
    """
    if isinstance(ids, tf.SparseTensor):  # Keras's layer reads row 0 for missing ids
        ids = tf.concat([ids.values, tf.zeros([1], ids.values.dtype)], 0)
    elif isinstance(ids, tf.RaggedTensor):
        ids = ids.flat_values
    ids = tf.reshape(ids, [-1])
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int32)


def scatter(rows: UniqueRows, num_rows: Tensor) -> tuple[Tensor, Tensor]:
    """Spread the rows over the whole table: gradients [num_rows, d] and counts [num_rows]."""
    where = tf.expand_dims(tf.cast(rows.ids, tf.int64), -1)
    size = tf.cast(num_rows, tf.int64)
    g = tf.scatter_nd(where, rows.g, tf.stack([size, tf.shape(rows.g, tf.int64)[1]]))
    return g, tf.scatter_nd(where, rows.cnt, size[tf.newaxis])


class ReadForm(NamedTuple):
    """What to read of a batch.

    Attributes:
        offsets: where the rows of each column begin in all tables, F numbers.
        width: columns of the hidden layers' input; beyond F * d + C, they are 0.
        dtype: of that input, float32 or bfloat16.
        pairs: whether to compute the second-order terms of FM.
    """

    offsets: Sequence[int]
    width: int
    dtype: DType
    pairs: bool


class BatchRead(NamedTuple):
    """What one operation has read for the layers of a model.

    Attributes:
        flat: embeddings, numbers and zeros, [b, width], float32 or bfloat16.
        first: sums of the id weights, float32 [b, 1]; [b, 0] if there are none.
        second: second-order terms of FM, float32 [b, 1]; [b, 0] if they are not wanted.
        sums: sums of the embeddings over the fields, float32 [b, d], for the gradient of `second`.
        groups: distinct ids, and where each occurs; see `Groups` in row_ops/group.h.
        rows: weights and moments of the distinct ids for each table, float32 [3, most, d], if rows
            may have missed steps.
        ids: id of each occurrence, integer [b, F].
        tables: variables of the embeddings, and of the id weights if there are any.
    """

    flat: Tensor
    first: Tensor
    second: Tensor
    sums: Tensor
    groups: Tensor
    rows: list[Tensor]
    ids: Tensor
    tables: list[Variable]

    @property
    def outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors that the layers read: flat, first and second."""
        return self.flat, self.first, self.second

    def pairs(self, gradients: tuple[Tensor, Tensor, Tensor]) -> list[Pair]:
        """Return gradient and variable of each table for `CowClip.apply_gradients`.

        Args:
            gradients: those of `outputs`.
        """
        return [(BatchSlices(self, gradients), table) for table in self.tables]


class BatchSlices(tf.IndexedSlices):
    """The gradient of a table that a `BatchRead` has read; its values are not computed one by one.

    Args:
        read: the read.
        gradients: of the read's `outputs`.
    """

    def __init__(self, read: BatchRead, gradients: tuple[Tensor, Tensor, Tensor]) -> None:
        super().__init__(gradients[0], tf.reshape(read.ids, [-1]))
        self.read, self.gradients = read, gradients
