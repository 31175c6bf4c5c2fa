"""A read of all rows of a batch at once, and the gradients of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cowclip_merlin import compat
from cowclip_merlin.types import DType, Pair, Tensor, Variable

tf = compat.tensorflow()


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
