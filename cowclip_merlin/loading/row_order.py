"""Order the rows of an epoch, and hold some of them out for validation.

The order is a seeded permutation of all rows, the same for resident and streamed data. Batch `i` of
epoch `e` always has the same rows, so a resumed run equals an uninterrupted one. Two generators
make such orders: NumPy on the host, and Philox, a generator of TensorFlow, on the device.

The held-out rows do not depend on a run's seed, only on the number of train rows, the fraction and
how they are chosen. So all runs of a search are compared on the same rows, and no run trains on
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat
from cowclip_merlin.batch import Batch
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.column_arrays import ColumnArrays
from cowclip_merlin.types import Array, Tensor, TensorSpec

PackedBatch: TypeAlias = "Tensor | tuple[Tensor, ...]"
"""A batch before `Data.unpack`: the numbers of its rows, or the tensors of its columns."""


NUMPY, PHILOX = ORDERS = ("numpy", "philox")
"""Generators of the order of rows."""


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Return the number of batches; the last is smaller if `batch_size` does not divide `rows`.

    >>> steps_per_epoch(10, 4)
    3
    """
    return -(-rows // batch_size)


def permutation(rows: int, *, seed: int, epoch: int) -> Array:
    """Return all row numbers in the order of this epoch, int32 [rows] (int64 above 2**31 rows).

    >>> permutation(5, seed=0, epoch=1).tolist()
    [1, 4, 3, 0, 2]
    """
    order = row_numbers(rows)
    np.random.default_rng([seed, epoch]).shuffle(order)
    return order


def philox_permutation(rows: int, *, seed: int, epoch: int) -> Tensor:
    """Return all row numbers in the order of this epoch, made on the device, int64 [rows].

    The rows are sorted by random numbers below 2**63 - 1, the same on a CPU and on a GPU.

    >>> sorted(philox_permutation(5, seed=0, epoch=1).numpy().tolist())
    [0, 1, 2, 3, 4]
    """
    tf = compat.tensorflow()
    keys = tf.random.stateless_uniform(
        [rows], [seed, epoch], 0, compat.LARGEST_KEY, tf.int64, alg="philox"
    )
    return compat.argsort_on_device(keys)


def row_numbers(rows: int) -> Array:
    """Return all row numbers in ascending order, int32 [rows] (int64 above 2**31 rows)."""
    return np.arange(rows, dtype=np.int32 if rows < 2**31 else np.int64)


def batches(
    rows: int, batch_size: int, *, seed: int, epoch: int, start: int = 0
) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the row numbers of one epoch's batches, from batch `start` on.

    Every row occurs exactly once per epoch. The last batch may be smaller, as in Keras and in the
    paper's runs; its loss is the mean over its own rows.

    >>> [b.tolist() for b in batches(5, 2, seed=0, epoch=1, start=1)]
    [[3, 0], [2]]
    """
    order = permutation(rows, seed=seed, epoch=epoch)
    for first in range(start * batch_size, rows, batch_size):
        yield order[first : first + batch_size]


class PermutationPrefetcher:
    """Permutations of `rows` rows; a thread draws the next epoch's one during training.

    >>> orders = PermutationPrefetcher(5)
    >>> [orders.permutation(seed=0, epoch=e).tolist() for e in (0, 1)]
    [[2, 4, 3, 0, 1], [1, 4, 3, 0, 2]]
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._ahead: dict[tuple[int, int], Future] = {}

    def permutation(self, *, seed: int, epoch: int) -> Array:
        """Return the permutation of an epoch, and start to draw the next one in a thread."""
        drawn = self._ahead.get((seed, epoch))
        order = drawn.result() if drawn else permutation(self._rows, seed=seed, epoch=epoch)
        pool = ThreadPoolExecutor(1, "cowclip-order")
        following = pool.submit(permutation, self._rows, seed=seed, epoch=epoch + 1)
        self._ahead = {(seed, epoch + 1): following}
        pool.shutdown(wait=False)  # the thread ends when it is done
        return order


class Data(ABC):
    """Rows for training or evaluation steps, batch by batch.

    A batch is a value that is cheap to pass to a `tf.function` with `signature`. Within the
    function, `unpack` converts it to a `Batch`.

    Attributes:
        rows: number of rows.
        bytes_per_row: bytes of one row in all columns.
        resident: whether all rows stay on the device.
        generator: one of `ORDERS`, which orders the rows of an epoch; set it before `batches`.
        signature: `tf.TensorSpec`, or a tuple of them, of a batch.
    """

    resident: bool
    signature: TensorSpec | tuple[TensorSpec, ...]

    def __init__(self, columns: ColumnArrays) -> None:
        self.rows, self.bytes_per_row = len(columns), columns.bytes_per_row
        self.generator = NUMPY
        self._orders = PermutationPrefetcher(self.rows)
        self._numbers = columns.rows

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, start: int = 0
    ) -> Iterator[PackedBatch]:
        """Yield the batches of one epoch from batch `start` on, in the order of `batches`."""
        order = self._order(seed=seed, epoch=epoch)
        return self._iterate(order[start * batch_size :], batch_size)

    def batches_in_file_order(self, batch_size: int) -> Iterator[PackedBatch]:
        """Yield all rows in the order of the files, for evaluation."""
        numbers = row_numbers(self.rows) if self._numbers is None else self._numbers
        return self._iterate(numbers, batch_size)

    def _order(self, *, seed: int, epoch: int) -> Array | Tensor:
        """Return the rows of an epoch in their order, integer [rows], on the host or the device."""
        how, numbers = {"seed": seed, "epoch": epoch}, self._numbers
        if self.generator == PHILOX:
            order, tf = philox_permutation(self.rows, **how), compat.tensorflow()
            # Not int32, which TensorFlow keeps on the host.
            return order if numbers is None else tf.gather(tf.constant(numbers, tf.int64), order)
        order = self._orders.permutation(**how)
        return order if numbers is None else numbers[order]

    @abstractmethod
    def _iterate(self, order: Array | Tensor, batch_size: int) -> Iterator[PackedBatch]:
        """Yield these rows, integer [m], in batches."""

    @abstractmethod
    def count(self, batch: PackedBatch) -> Tensor:
        """Return the number of rows of a batch, int32."""

    @abstractmethod
    def part(self, batch: PackedBatch, first: int | Tensor, end: int | Tensor) -> PackedBatch:
        """Return the rows from `first` on and before `end` of a batch, as a batch."""

    @abstractmethod
    def unpack(self, batch: PackedBatch) -> Batch:
        """Return the columns of a batch."""

    @abstractmethod
    def labels(self) -> Tensor:
        """Return the labels of all rows on the device, float32 [n] or [n, T], in file order."""

    @abstractmethod
    def weights(self) -> Tensor | None:
        """Return the weights of all rows on the device, float32 [n]; None without weights."""

    def sum_of_weights(self, batch: PackedBatch) -> Tensor:
        """Return the sum of the weights of a batch, float32."""
        return compat.tensorflow().reduce_sum(self.unpack(batch).weights)


SEED = 220406240  # a change would compare new runs with old ones on different rows


def validation_rows(rows: int, fraction: float) -> int:
    """Return the number of held-out rows.

    Raises:
        InputError: if no rows would be held out, or no rows would be left to train on.

    >>> validation_rows(1000, 0.1)
    100
    """
    held = round(rows * fraction)
    if not 0 < held < rows:
        raise InputError(
            f"validation_fraction {fraction:g} of {rows} train rows holds out {held}; both splits "
            "need rows; use another fraction"
        )
    return held


def validation_mask(rows: int, fraction: float, how: str = "random") -> npt.NDArray[np.bool_]:
    """Return which train rows are held out, bool [rows].

    The rows of a smaller fraction are a subset of the rows of a larger one.

    Args:
        rows: number of train rows.
        fraction: share of them to hold out.
        how: "random", or "last", which holds out the last rows of the folder: the latest ones if
            the log is in order of time.

    Raises:
        InputError: as `validation_rows`.

    >>> validation_mask(5, 0.4).tolist()
    [False, True, False, True, False]
    >>> validation_mask(5, 0.4, "last").tolist()
    [False, False, False, True, True]
    """
    count, order = validation_rows(rows, fraction), row_numbers(rows)
    if how == "random":
        np.random.default_rng(SEED).shuffle(order)
    held = np.zeros(rows, np.bool_)
    held[order[:count] if how == "random" else order[-count:]] = True
    return held


def train_validation_split(
    columns: ColumnArrays, fraction: float, how: str = "random"
) -> tuple[ColumnArrays, ColumnArrays]:
    """Split the train rows into rows to train and to validate on, which share the arrays.

    Args:
        columns: the train split, in host memory, mapped from files or on a GPU.
        fraction: share of its rows to validate on, in (0, 1).
        how: as for `validation_mask`.

    Raises:
        InputError: if a part has no rows or no weight above 0, or all validation rows have the
            same label. The labels [n, T] of other targets are not checked.
    """
    held, numbers = validation_mask(len(columns), fraction, how), row_numbers(len(columns))
    kept, validation = columns.take(numbers[~held]), columns.take(numbers[held])
    for name, part in (("training", kept), ("validation", validation)):
        if part.weight is not None and not part.weights.any():
            raise InputError(
                f"validation_fraction {fraction:g}: all weights of the {len(part)} {name} rows are "
                "0; use another fraction"
            )
    labels = validation.labels
    if validation.label.ndim == 1 and len(np.unique(labels)) < 2:
        raise InputError(
            f"validation_fraction {fraction:g}: all {len(labels)} rows have the label "
            f"{labels[0, 0]:g}, but AUC needs both labels; use a larger fraction"
        )
    return kept, validation
