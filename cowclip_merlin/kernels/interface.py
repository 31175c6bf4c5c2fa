"""Define what all row kernels share: results and errors; `choices.RowSettings` are settings."""

from __future__ import annotations

from typing import NamedTuple

from cowclip_merlin.types import Array, ArrayOrTensor


class Groups(NamedTuple):
    """Where each distinct id of a batch occurs.

    Attributes:
        ids: distinct ids, ascending, [u].
        starts: int [u + 1]; id i occurs at `order[starts[i]:starts[i + 1]]`.
        order: positions in the batch, by id and then by position, int [n].
    """

    ids: Array
    starts: Array
    order: Array


class UniqueRows(NamedTuple):
    """Distinct ids of a batch, in the order that the returning function documents.

    Attributes:
        ids: integer [u].
        cnt: occurrences, int [u].
        g: summed gradients, [u, d].
        squares: sum over the micro-batches of their squared sums, [u, d]; None: g * g.
    """

    ids: ArrayOrTensor
    cnt: ArrayOrTensor
    g: ArrayOrTensor
    squares: ArrayOrTensor | None = None


class NonFiniteGradient(ArithmeticError):
    """The summed gradient of a row contains NaN or Inf; no table was changed.

    Attributes:
        index: index of the first such id among the distinct ids, ascending.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"the gradient of distinct id number {index} is not finite")
        self.index = index
