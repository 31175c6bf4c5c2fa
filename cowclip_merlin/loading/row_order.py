"""The order of an epoch, which is the same however the rows reach the device.

It is a seeded permutation of all rows: batch `i` of epoch `e` is the same rows whenever it is
asked for, which is what makes a resumed run equal to an uninterrupted one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Number of batches; the last one is smaller where `batch_size` does not divide `rows`.

    >>> steps_per_epoch(10, 4)
    3
    """
    return -(-rows // batch_size)


def permutation(rows: int, *, seed: int, epoch: int) -> npt.NDArray[Any]:
    """All row numbers in the order of this epoch, int32 [rows] (int64 beyond 2**31 rows).

    >>> permutation(5, seed=0, epoch=1).tolist()
    [1, 4, 3, 0, 2]
    """
    order = row_numbers(rows)
    np.random.default_rng([seed, epoch]).shuffle(order)
    return order


def row_numbers(rows: int) -> npt.NDArray[Any]:
    """All row numbers in ascending order, int32 [rows] (int64 beyond 2**31 rows)."""
    return np.arange(rows, dtype=np.int32 if rows < 2**31 else np.int64)


def batches(
    rows: int, batch_size: int, *, seed: int, epoch: int, start: int = 0
) -> Iterator[npt.NDArray[np.int32]]:
    """Row numbers of one epoch's batches, from batch `start` on.

    Every row comes exactly once per epoch. The last batch keeps its rows, however few, as in
    Keras and in the paper's runs; its loss is the mean over the rows it has.

    >>> [b.tolist() for b in batches(5, 2, seed=0, epoch=1, start=1)]
    [[3, 0], [2]]
    """
    order = permutation(rows, seed=seed, epoch=epoch)
    for first in range(start * batch_size, rows, batch_size):
        yield order[first : first + batch_size]


class PermutationPrefetcher:
    """Permutations of `rows` rows; while one is trained on, a thread draws the next epoch's.

    >>> orders = PermutationPrefetcher(5)
    >>> [orders.permutation(seed=0, epoch=e).tolist() for e in (0, 1)]
    [[2, 4, 3, 0, 1], [1, 4, 3, 0, 2]]
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._ahead: dict[tuple[int, int], Future] = {}

    def permutation(self, *, seed: int, epoch: int) -> npt.NDArray[Any]:
        """As `permutation`."""
        drawn = self._ahead.get((seed, epoch))
        order = drawn.result() if drawn else permutation(self._rows, seed=seed, epoch=epoch)
        pool = ThreadPoolExecutor(1, "cowclip-order")
        following = pool.submit(permutation, self._rows, seed=seed, epoch=epoch + 1)
        self._ahead = {(seed, epoch + 1): following}
        pool.shutdown(wait=False)  # the thread ends when it is done
        return order


class Data(ABC):
    """Rows that a training or scoring step can take, batch by batch.

    A batch is whatever is cheap to hand to a `tf.function` with `signature`; in there, `unpack`
    turns it into the model's inputs and the labels.

    Attributes:
        rows: number of rows.
        bytes_per_row: of the columns.
        resident: whether all rows stay on the device.
        signature: `tf.TensorSpec`, or a tuple of them, of a batch.
    """

    resident: bool
    signature: Any

    def __init__(self, rows: int, bytes_per_row: int) -> None:
        self.rows, self.bytes_per_row = rows, bytes_per_row
        self._orders = PermutationPrefetcher(rows)

    def batches(self, batch_size: int, *, seed: int, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of one epoch from batch `start` on, as `batches` orders them."""
        order = self._orders.permutation(seed=seed, epoch=epoch)
        return self._iterate(order[start * batch_size :], batch_size)

    def batches_in_file_order(self, batch_size: int) -> Iterator[Any]:
        """All rows in the order of the files, for scoring."""
        return self._iterate(row_numbers(self.rows), batch_size)

    @abstractmethod
    def _iterate(self, order: npt.NDArray[Any], batch_size: int) -> Iterator[Any]:
        """These rows, integer [m], cut into batches."""

    @abstractmethod
    def unpack(self, batch: Any) -> tuple[dict[str, Any], Any]:
        """Inputs of a model and labels, float32 [b], of a batch."""
