"""A batch of rows: the type of its ids, and of all its columns.

Loading and events make batches, models and growing tables read them. This module imports neither
NumPy nor TensorFlow, because both kinds of arrays may be in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cowclip_merlin.types import Array, ArrayOrTensor


def ranges(first: Array, sizes: Array) -> Array:
    """Return the numbers of all ranges that begin at `first` and have these sizes, in one array.

    >>> import numpy as np
    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    import numpy as np

    sizes = np.asarray(sizes, np.int64)
    before = sizes.cumsum() - sizes
    return np.arange(sizes.sum()) + np.repeat(first - before, sizes)


class Ids(NamedTuple):
    """Ids of some rows in all categorical columns, or the table rows of these ids.

    If every column has one id per row, `values` is a matrix. A multi-valued column has any number
    of ids in a row, also none. If there is one, `values` lists the ids of the first row, column
    after column, then those of the second row, and so on.

    They are NumPy arrays on the host and tensors within a step. `take` and `concatenate` are for
    the host. TensorFlow passes a named tuple into graphs; but as a tuple, `len` of it is 2.

    Attributes:
        values: integer [n, F]; with multi-valued columns [m].
        lengths: number of ids of each row in each column, int32 [n, F]; None: one id everywhere.

    >>> import numpy as np
    >>> ids = Ids(np.array([7, 3, 3, 5]), np.array([[1, 2], [1, 0]], np.int32))
    >>> ids.take(slice(1)).values.tolist(), ids.num_rows, ids.num_fields
    ([7, 3, 3], 2, 2)
    """

    values: ArrayOrTensor
    lengths: ArrayOrTensor | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows, n."""
        return self._matrix.shape[0]

    @property
    def num_fields(self) -> int:
        """Number of columns, F."""
        return self._matrix.shape[1]

    @property
    def _matrix(self) -> ArrayOrTensor:
        return self.values if self.lengths is None else self.lengths

    def with_values(self, values: ArrayOrTensor) -> Ids:
        """Return the same structure with other values, such as the table rows of the ids."""
        return self._replace(values=values)

    def take(self, which: Array | slice) -> Ids:
        """Return the ids of some rows: those of a mask [n] or a slice, or by their numbers."""
        if self.lengths is None:
            return Ids(self.values[which])
        of_row, lengths = self.lengths.sum(axis=1), self.lengths[which]
        if isinstance(which, slice) and which.step is None:  # without a copy
            begin = of_row[: which.indices(len(of_row))[0]].sum()
            return Ids(self.values[begin : begin + lengths.sum()], lengths)
        first = (of_row.cumsum() - of_row)[which]
        return Ids(self.values[ranges(first, lengths.sum(axis=1))], lengths)

    @classmethod
    def of_columns(cls, columns: Sequence[tuple[Array, Array | None]]) -> Ids:
        """Join the ids of columns, of which at least one is multi-valued.

        Args:
            columns: ids [k], and how many of them each row has, [n]; None: one each.

        >>> import numpy as np
        >>> several = np.array([7, 8]), np.array([0, 2])
        >>> Ids.of_columns([(np.array([1, 2]), None), several]).values.tolist()
        [1, 2, 7, 8]
        """
        import numpy as np

        lengths = np.stack(
            [np.ones(len(ids), np.int32) if size is None else size for ids, size in columns], axis=1
        ).astype(np.int32)
        first = (lengths.cumsum() - lengths.reshape(-1)).reshape(lengths.shape)
        values = np.empty(int(lengths.sum()), np.result_type(*(ids for ids, _ in columns)))
        for f, (ids, size) in enumerate(columns):
            values[first[:, f] if size is None else ranges(first[:, f], size)] = ids
        return cls(values, lengths)

    def by_field(self, fields: Sequence[int]) -> tuple[Ids, Array]:
        """Join the columns that share a field, and say where each of the ids was.

        Args:
            fields: number of the field of each column.

        Returns:
            The ids with a column for each field; and the place of each of them in `values`.

        >>> import numpy as np
        >>> ids, places = Ids(np.array([[7, 3, 9]])).by_field([0, 1, 0])
        >>> ids.values.tolist(), ids.lengths.tolist(), places.tolist()
        ([7, 9, 3], [[2, 1]], [0, 2, 1])
        """
        import numpy as np

        values, lengths = self.multi_valued()
        first = (lengths.cumsum() - lengths.reshape(-1)).reshape(lengths.shape)
        order, numbers = np.argsort(fields, kind="stable"), np.asarray(fields)
        places = ranges(first[:, order].reshape(-1), lengths[:, order].reshape(-1))
        of_field = [lengths[:, numbers == f].sum(axis=1) for f in range(max(fields) + 1)]
        return Ids(values[places], np.stack(of_field, axis=1).astype(np.int32)), places

    @classmethod
    def concatenate(cls, parts: Sequence[Ids]) -> Ids:
        """Return the ids of all parts in their order."""
        import numpy as np

        if all(part.lengths is None for part in parts):
            return cls(np.concatenate([part.values for part in parts]))
        parts = [part.multi_valued() for part in parts]
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts)))

    def multi_valued(self) -> Ids:
        """Return the form with `lengths`, also if each column has one id per row."""
        if self.lengths is not None:
            return self
        import numpy as np

        return Ids(self.values.reshape(-1), np.ones(self.values.shape, np.int32))


class Requests(NamedTuple):
    """What workers ask of each other to look up ids in tables of which each has a part.

    Attributes:
        rows: numbers of this worker's rows that were asked for, int32 [m]; a row that several
            workers ask for occurs several times.
        counts: occurrences that each of them stands for, int32 [m].
        places: place of each of them in the answers, [N, size], as one number, int32 [m].
        answered: for every occurrence of an id here, the place of its row in the answers that
            this worker gets, int32, of the shape of the ids.
        size: answers for one worker, with padding.
        step: number of that size.
    """

    rows: ArrayOrTensor
    counts: ArrayOrTensor
    places: ArrayOrTensor
    answered: ArrayOrTensor
    size: ArrayOrTensor
    step: ArrayOrTensor


class Batch(NamedTuple):
    """A batch of rows, as a model reads it.

    Attributes:
        ids: categorical columns; the values are rows of the embedding tables.
        numbers: continuous columns, float32 [b, C].
        labels: 0 or 1, float32 [b]; None without labels, as in a request. With several targets
            float32 [b, T], of which a regression has any number, and a missing one is NaN.
        offsets: what a step subtracts from the logits, float32 [b]; None: nothing. Not with several
            targets.
        weights: weights of the rows in the loss, float32 [b]; None: all are equal.
        requests: of the rows of the ids, which other workers have; None: the tables are here.
    """

    ids: Ids
    numbers: ArrayOrTensor
    labels: ArrayOrTensor | None = None
    offsets: ArrayOrTensor | None = None
    weights: ArrayOrTensor | None = None
    requests: Requests | None = None
