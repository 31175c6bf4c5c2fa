"""Where the ids of multi-valued columns lie in the arrays of a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.types import Array, Tensor

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
