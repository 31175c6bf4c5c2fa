"""Keep the columns in the memory of the training device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.class_weights import weighted_by_class
from cowclip_merlin.loading.column_arrays import ColumnArrays, IdLayout
from cowclip_merlin.loading.row_order import Data, PackedBatch
from cowclip_merlin.types import Array, Tensor

ALIGNMENT = 64  # bytes; alignment that TensorFlow's CPU kernels expect
LABELS = 2  # position of the labels in a batch


class DeviceData(Data):
    """Columns on the training device; a batch holds row numbers, and one gather fetches its rows.

    On the CPU, columns mapped from files are used without a copy.

    Args:
        columns: the rows.
        beside: other rows of the same arrays, which are on the device already.

    >>> columns = ColumnArrays(np.array([[3], [5]], np.int32), np.ones((2, 1), np.float32),
    ...                   np.array([0, 1], np.float32))
    >>> data = DeviceData(columns)
    >>> batch = data.unpack([1])
    >>> batch.ids.values.numpy().tolist(), batch.labels.numpy().tolist()
    ([[5]], [1.0])
    >>> [rows.numpy().tolist() for rows in data.batches(1, seed=0, epoch=0)]
    [[0], [1]]
    """

    resident = True

    def __init__(self, columns: ColumnArrays, *, beside: DeviceData | None = None) -> None:
        super().__init__(columns)
        tf = compat.tensorflow()
        self._tf = tf
        self._has_weights = columns.weight is not None
        self._layout, self._class_weights = columns.layout, columns.class_weights
        self._starts = None
        if beside is not None:
            self._tensors, self._starts = beside._tensors, beside._starts
        else:
            self._tensors = [to_device(a) for a in as_float_arrays(columns)]
            if self._layout:
                self._starts = to_device(self._layout.starts(columns.lengths)[:-1].copy())
        self.signature = tf.TensorSpec([None], tf.int64)

    def variable_batches(
        self, lengths: Iterable[int], *, seed: int, epoch: int, first: int = 0
    ) -> Iterator[PackedBatch]:
        """Yield batches of these lengths, in the order of the epoch, from row `first` on."""
        return self._slices(self._order(seed=seed, epoch=epoch)[first:], lengths)

    def batches_in_file_order(self, batch_size: int) -> Iterator[PackedBatch]:
        """Yield all rows in the order of the files; the device counts them if it has no others."""
        if self._numbers is not None:
            yield from super().batches_in_file_order(batch_size)
            return
        for first in range(0, self.rows, batch_size):
            yield self._tf.range(first, min(first + batch_size, self.rows), dtype=self._tf.int64)

    def _iterate(self, order: Array | Tensor, batch_size: int) -> Iterator[PackedBatch]:
        return self._slices(order, repeat(batch_size))

    def _slices(self, order: Array | Tensor, lengths: Iterable[int]) -> Iterator[PackedBatch]:
        # Not int32: TensorFlow keeps int32 arguments of a function on the host.
        tf, first = self._tf, 0
        rows = order if tf.is_tensor(order) else to_device(order.astype(np.int64))
        for length in lengths:
            if first >= len(order):
                return
            yield tf.slice(rows, [first], [min(length, len(order) - first)])
            first += length

    def count(self, batch: PackedBatch) -> Tensor:
        """Return the number of rows of a batch, int32."""
        return self._tf.size(batch)

    def part(self, batch: PackedBatch, first: int | Tensor, end: int | Tensor) -> PackedBatch:
        """Return the rows from `first` on and before `end` of a batch, as a batch."""
        return batch[first:end]

    def unpack(self, batch: PackedBatch) -> Batch:
        """Return the columns of these rows, integer [b]."""
        gather = self._tf.gather
        bits, *others = self._tensors
        others = [gather(tensor, batch) for tensor in others]
        if self._layout is None:
            bits = gather(bits, batch)
        else:
            lengths = self._tf.bitcast(others[-1], self._tf.int32)
            bits = self._layout.gather_rows(bits, gather(self._starts, batch), lengths)
        unpacked, weights = unpack_tensors([bits, *others], self._layout), self._class_weights
        return unpacked if weights is None else weighted_by_class(unpacked, weights)

    def labels(self) -> Tensor:
        """Return the labels of all rows."""
        return self._of_these(self._tensors[LABELS])

    def weights(self) -> Tensor | None:
        """Return the weights of all rows; None without weights."""
        return self._of_these(self._tensors[LABELS + 1]) if self._has_weights else None

    def _of_these(self, tensor: Tensor) -> Tensor:
        if self._numbers is None:
            return tensor
        return self._tf.gather(tensor, to_device(self._numbers.astype(np.int64)))


def as_float_arrays(columns: ColumnArrays) -> list[Array]:
    """Return the arrays in the order of `columns.arrays`, with bits of integers as float32.

    These are ids [n, F], numbers [n, C] and labels [n] or [n, T]; also the weights
    [n], if there are any.
    With multi-valued columns, the ids are [m], and the bits of the lengths [n, M] come last.

    TensorFlow keeps int32 inputs of a graph in host memory, even with a GPU; float32 inputs stay
    on their device. The bits are only copied, never computed with.
    """
    arrays = map(_writable, columns.arrays.values())
    return [a if a.dtype == np.float32 else a.view(np.float32) for a in arrays]


def _writable(array: Array) -> Array:
    """Map the same file copy-on-write, because NumPy cannot share read-only arrays by DLPack."""
    if not isinstance(array, np.memmap) or array.flags.writeable:
        return array
    try:
        return np.memmap(
            array.filename, array.dtype, mode="c", offset=array.offset, shape=array.shape
        )
    except OSError as error:
        raise InputError(
            f"{array.filename}: cannot be mapped into memory ({error.strerror}); use "
            "`data_memory` to stream the rows"
        ) from error


def unpack_tensors(tensors: Sequence[Tensor], layout: IdLayout | None = None) -> Batch:
    """Return the batch from its tensors; see `as_float_arrays`.

    Args:
        tensors: of the rows of the batch.
        layout: its multi-valued columns, if there are any.
    """
    tf = compat.tensorflow()
    bits, numbers, labels, *more = tensors
    ids = Ids(tf.bitcast(bits, tf.int32))
    if layout is not None:
        ids = layout.batch_ids(ids.values, tf.bitcast(more.pop(), tf.int32))
    return Batch(ids, numbers, labels, weights=more[0] if more else None)


def to_device(array: Array) -> Tensor:
    """Convert an array to a tensor on the GPU if TensorFlow uses one, else on the CPU.

    The tensor shares the memory of an aligned array on the right device (by DLPack), and copies
    any other array. NumPy before 1.24 always copies. Do not write to the array afterwards.

    >>> to_device(np.ones(3, np.float32)).numpy().tolist()
    [1.0, 1.0, 1.0]
    """
    tf = compat.tensorflow()
    if not array.size:
        return tf.zeros(array.shape, array.dtype)
    gpu = bool(tf.config.list_logical_devices("GPU"))
    if _can_be_shared(array, gpu):
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    with tf.device("GPU:0" if gpu else "CPU:0"):
        return tf.identity(tf.constant(array))


def _can_be_shared(array: Array, gpu: bool) -> bool:
    if not isinstance(array, np.ndarray):
        return True  # a CuPy array, so on the GPU
    flags = array.flags
    usable = flags.writeable and flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    return not gpu and usable and compat.numpy_memory_can_be_shared(np.__version__)
