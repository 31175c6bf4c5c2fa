"""The rows of one split as arrays: in host memory, mapped from files, or on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat
from cowclip_merlin.batch import Ids, ranges
from cowclip_merlin.checks import ClassWeights
from cowclip_merlin.targets import only_clicks
from cowclip_merlin.types import Array, Tensor

if TYPE_CHECKING:
    from cowclip_merlin.workflows import LogFormat, PreparedData


ColumnIds: TypeAlias = "Array | tuple[Array, Array]"
"""Ids of a column, [n]; of a multi-valued one all ids [k], and how many each row has, [n]."""


@dataclass(frozen=True)
class IdLayout:
    """Columns with several ids per row, among all categorical columns.

    The ids of a split are one array [m]: those of the first row, column after column, then those
    of the second row, and so on. Only the lengths of multi-valued columns are stored.

    Attributes:
        fields: number of categorical columns, F.
        multi: positions of the M multi-valued ones among them, ascending.

    >>> layout = IdLayout(3, (1,))
    >>> lists = (np.array([7, 8]), np.array([0, 2]))  # no id in the first row, two in the second
    >>> ids, lengths = layout.join([np.array([1, 2]), lists, np.array([3, 4])])
    >>> ids.tolist(), lengths.tolist()
    ([1, 3, 2, 7, 8, 4], [[0], [2]])
    """

    fields: int
    multi: tuple[int, ...]

    def join(
        self, columns: Sequence[ColumnIds]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Join the ids of all columns.

        Args:
            columns: ids [n] of a column with one id per row; ids and lengths ([k], [n]) of a
                multi-valued one.

        Returns:
            All ids, [m], and the lengths of the multi-valued columns, [n, M].
        """
        ids = Ids.of_columns([x if j in self.multi else (x, None) for j, x in enumerate(columns)])
        # NumPy would put the lengths of a column side by side, but the cache has those of a row.
        lengths = np.ascontiguousarray(ids.lengths[:, list(self.multi)])
        return ids.values.astype(np.int32, copy=False), lengths

    def of_all_columns(self, lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the number of ids of each row in each column, [n, F], from those stored [n, M]."""
        ones = np.ones((len(lengths), 1), np.int32)
        return np.concatenate([ones, lengths], axis=1)[:, self._sources]

    def starts(self, lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Return where each row begins among all ids, and the end of the last, int64 [n + 1]."""
        of_row = lengths.sum(axis=1, dtype=np.int64) + self.fields - len(self.multi)
        return np.concatenate(([0], of_row.cumsum()))

    @property
    def _sources(self) -> npt.NDArray[np.int32]:
        """For each column, 0 if it has one id per row, else 1 + its number in `multi`."""
        found = np.zeros(self.fields, np.int32)
        found[list(self.multi)] = np.arange(1, len(self.multi) + 1)
        return found

    def batch_ids(self, values: Tensor, lengths: Tensor) -> Ids:
        """Return the ids of a batch from tensors: all ids [m], and stored lengths [b, M]."""
        tf = compat.tensorflow()
        ones = tf.ones([tf.shape(lengths)[0], 1], tf.int32)
        return Ids(values, tf.gather(tf.concat([ones, lengths], axis=1), self._sources, axis=1))

    def gather_rows(self, bits: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
        """Gather the ids of a batch's rows.

        Args:
            bits: all ids of a split, [m].
            starts: where each row of the batch begins among them, int64 [b].
            lengths: stored lengths of these rows, int32 [b, M].
        """
        tf = compat.tensorflow()
        of_row = tf.reduce_sum(lengths, 1) + (self.fields - len(self.multi))
        return tf.gather(bits, compat.ranges_of_parts(starts, of_row))

    def part(
        self, values: Tensor, lengths: Tensor, first: int | Tensor, end: int | Tensor
    ) -> Tensor:
        """Return the ids of the rows from `first` on and before `end` of a batch."""
        tf = compat.tensorflow()
        one_each = self.fields - len(self.multi)
        of_row = tf.reduce_sum(lengths, axis=1) + one_each
        begin = tf.reduce_sum(of_row[:first])
        return values[begin : begin + tf.reduce_sum(of_row[first:end])]


_START_BYTES = 8  # of the position of a row's first id


@dataclass(frozen=True)
class ColumnArrays:
    """One split as arrays, or some of its rows: in host memory, mapped from files, or on a GPU.

    Attributes:
        ids: categorical ids, int32 [n, F], in the data set's field order; [m] with multi-valued
            columns, ordered as `layout` says.
        continuous: float32 [n, C], the continuous columns and then the numbers of the vectors.
        label: float32 [n], 0 or 1; with other targets [n, T], where a missing label is NaN.
        lengths: number of ids of each row in the multi-valued columns, int32 [n, M]; None: each
            column has one id per row.
        layout: the multi-valued columns; None: there are none.
        weight: float32 [n], at least 0; None: all rows weigh the same.
        class_weights: weights of the labels 0 and 1 in the loss; None: both are 1.
        rows: numbers of the rows that these are, integer [n], on the host. The arrays then have
            all rows of the split, which its parts share. None: all rows.

    >>> ColumnArrays(np.zeros((2, 26), np.int32), np.zeros((2, 13), np.float32),
    ...         np.zeros(2, np.float32)).bytes_per_row
    160
    """

    ids: npt.NDArray[np.int32]
    continuous: npt.NDArray[np.float32]
    label: npt.NDArray[np.float32]
    lengths: npt.NDArray[np.int32] | None = None
    layout: IdLayout | None = None
    weight: npt.NDArray[np.float32] | None = None
    class_weights: ClassWeights | None = None
    rows: npt.NDArray[np.integer] | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.label if self.rows is None else self.rows)

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row on the device, the mean if rows differ."""
        others = self.continuous.shape[1] + self.targets + (self.weight is not None)
        if self.lengths is None:
            return 4 * (self.ids.shape[1] + others)
        mean = -(-self.ids.size // max(len(self.label), 1))
        return 4 * (mean + self.lengths.shape[1] + others) + _START_BYTES

    @property
    def targets(self) -> int:
        """Number of targets, T."""
        return 1 if self.label.ndim == 1 else self.label.shape[1]

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays of the whole split, by name: weights after labels, lengths last."""
        names = ("ids", "continuous", "label", "weight", "lengths")
        return {n: array for n in names if (array := getattr(self, n)) is not None}

    @property
    def labels(self) -> npt.NDArray[np.float32]:
        """The labels of these rows on the host, [n, T]."""
        return on_host(self.label).reshape(len(self.label), self.targets)[self._which]

    @property
    def weights(self) -> npt.NDArray[np.float32] | None:
        """The weights of these rows on the host, [n]; None: all rows weigh the same."""
        return None if self.weight is None else on_host(self.weight)[self._which]

    @property
    def _which(self) -> npt.NDArray[np.integer] | slice:
        return slice(None) if self.rows is None else self.rows

    @property
    def on_gpu(self) -> bool:
        """Whether these are CuPy arrays."""
        return not isinstance(self.label, np.ndarray)

    @classmethod
    def empty(cls, data: PreparedData, rows: int, arrays: ModuleType = np) -> ColumnArrays:
        """Allocate arrays for `rows` rows with the module `arrays`: NumPy or CuPy.

        With multi-valued columns, the rows have no ids yet; `with_ids` adds them.
        """
        fields, layout = len(data.categorical), id_layout(data)
        return cls(
            ids=arrays.empty((rows, fields) if layout is None else 0, np.int32),
            lengths=None if layout is None else arrays.empty((rows, len(layout.multi)), np.int32),
            layout=layout,
            continuous=arrays.empty((rows, sum(data.log_format.widths.values())), np.float32),
            label=arrays.empty((rows, *_axis_of_targets(data)), np.float32),
            weight=arrays.empty(rows, np.float32) if data.log_format.weight else None,
        )

    def with_ids(self, columns: Sequence[ColumnIds]) -> ColumnArrays:
        """Return these rows with the ids of each column.

        Args:
            columns: ids [n] of each column, or ids and lengths of a multi-valued one; see
                `IdLayout.join`.
        """
        if self.layout is None:
            for j, column in enumerate(columns):
                self.ids[:, j] = column
            return self
        ids, lengths = self.layout.join(columns)
        return replace(self, ids=ids, lengths=lengths)

    def take(self, numbers: npt.NDArray[np.integer]) -> ColumnArrays:
        """Return some rows by their numbers, [k], without a copy of their values."""
        return replace(self, rows=numbers if self.rows is None else self.rows[numbers])

    def column(self, j: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the ids of column number `j`, and the number of ids of each row, [n]."""
        if self.layout is None:
            return self.ids[self._which, j], np.ones(len(self), np.int32)
        of_cell = self.layout.of_all_columns(self.lengths[self._which])
        first = self.layout.starts(self.lengths)[:-1][self._which] + of_cell[:, :j].sum(axis=1)
        sizes = of_cell[:, j]
        return self.ids[ranges(first, sizes)], sizes


def on_host(array: Array | None) -> Array | None:
    """Return a NumPy array of the values of a NumPy or CuPy array.

    >>> on_host(np.zeros(2)).tolist(), on_host(None)
    ([0.0, 0.0], None)
    """
    return array.get() if hasattr(array, "get") else array


def _axis_of_targets(data: PreparedData) -> tuple[int, ...]:
    """Return the second axis of the labels; none with one label of 0 and 1."""
    return () if only_clicks(data.targets) else (len(data.targets),)


def id_layout(data: PreparedData) -> IdLayout | None:
    """Return where the multi-valued columns of a prepared folder are; None without one."""
    names = data.categorical
    multi = tuple(names.index(name) for name in names if name in data.log_format.multi)
    return IdLayout(len(names), multi) if multi else None


def vector_places(log_format: LogFormat) -> dict[str, slice]:
    """Return the columns of `ColumnArrays.continuous` that have the numbers of each vector."""
    places, first = {}, len(log_format.continuous)
    for name, length in log_format.vectors.items():
        places[name] = slice(first, first + length)
        first += length
    return places
