"""Stream rows to the device in chunks, for data larger than the device's memory.

The permutation of an epoch is the same as for `DeviceData`, cut into chunks of several batches.
During training on one chunk, threads gather the rows of the next one from the memory map and copy
them to the device. So with the same generator, the batches equal those of `DeviceData`, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat
from cowclip_merlin.batch import Batch, ranges
from cowclip_merlin.loading.class_weights import weighted_by_class
from cowclip_merlin.loading.column_arrays import ColumnArrays
from cowclip_merlin.loading.device_data import ALIGNMENT, LABELS, to_device, unpack_tensors
from cowclip_merlin.loading.row_order import Data, PackedBatch
from cowclip_merlin.types import Array, Tensor
from cowclip_merlin.workflows.parallel import cpu_threads

BATCHES_PER_CHUNK = 64
ROWS_AT_ONCE = 1 << 16
_NAME = "cowclip-stream"  # of the threads


class StreamedData(Data):
    """Columns in files or host memory, of which at most `memory` bytes are on the device.

    Args:
        columns: mapped from files, or in host memory.
        memory: bytes for two chunks and one batch, at least enough for three batches; None:
            chunks of 64 batches.

    >>> columns = ColumnArrays(np.array([[3], [5]], np.int32), np.ones((2, 1), np.float32),
    ...                   np.array([0, 1], np.float32))
    >>> data = StreamedData(columns)
    >>> [data.unpack(b).ids.values.numpy().tolist() for b in data.batches_in_file_order(1)]
    [[[3]], [[5]]]
    """

    resident = False

    def __init__(self, columns: ColumnArrays, *, memory: int | None = None) -> None:
        super().__init__(columns)
        tf = compat.tensorflow()
        self._tf, self._memory = tf, memory
        self._columns, self._layout = columns, columns.layout
        self._arrays = [array.view(np.float32) for array in columns.arrays.values()]
        if self._layout:
            self._row_starts = self._layout.starts(columns.lengths)
        self.signature = tuple(
            tf.TensorSpec([None, *array.shape[1:]], tf.float32) for array in self._arrays
        )

    def count(self, batch: PackedBatch) -> Tensor:
        """Return the number of rows of a batch, int32."""
        return self._tf.shape(batch[LABELS])[0]

    def part(self, batch: PackedBatch, first: int | Tensor, end: int | Tensor) -> PackedBatch:
        """Return the rows from `first` on and before `end` of a batch, as a batch."""
        rows = [tensor[first:end] for tensor in batch]
        if self._layout:
            lengths = self._tf.bitcast(batch[-1], self._tf.int32)
            rows[0] = self._layout.part(batch[0], lengths, first, end)
        return tuple(rows)

    def unpack(self, batch: PackedBatch) -> Batch:
        """Return the columns of a batch from this object."""
        unpacked = unpack_tensors(batch, self._layout)
        weights = self._columns.class_weights
        return unpacked if weights is None else weighted_by_class(unpacked, weights)

    def labels(self) -> Tensor:
        """Copy the labels of all rows to the device."""
        labels = self._columns.labels
        return to_device(labels[:, 0] if self._columns.label.ndim == 1 else labels)

    def weights(self) -> Tensor | None:
        """Copy the weights of all rows to the device; None without weights."""
        weights = self._columns.weights
        return None if weights is None else to_device(weights)

    def _iterate(self, order: Array | Tensor, batch_size: int) -> Iterator[PackedBatch]:
        order = np.asarray(order)
        size = batch_size * self._batches_per_chunk(batch_size)
        chunks = [order[first : first + size] for first in range(0, len(order), size)]
        # The end of the block waits for the threads, also if the consumer stops early.
        with _Gatherer() as gatherer, ThreadPoolExecutor(1, _NAME) as pool:
            load = partial(self._load, gatherer=gatherer)
            ahead = [pool.submit(load, chunk) for chunk in chunks[:1]]
            for following in range(1, len(chunks) + 1):
                chunk = ahead.pop().result()
                if following < len(chunks):
                    ahead.append(pool.submit(load, chunks[following]))
                yield from self._batches_of(*chunk, batch_size)

    def _batches_per_chunk(self, batch_size: int) -> int:
        if self._memory is None:
            return BATCHES_PER_CHUNK
        fit = (self._memory // (min(batch_size, self.rows) * self.bytes_per_row) - 1) // 2
        return min(max(fit, 1), BATCHES_PER_CHUNK)

    def _load(
        self, rows: Array, gatherer: _Gatherer
    ) -> tuple[list[Tensor], npt.NDArray[np.int64] | None]:
        """Copy these rows to the device, in this order; runs in a thread.

        Returns:
            The tensors; and with multi-valued columns where the ids of each row begin, [n + 1].
        """
        if self._layout is None:
            return [to_device(array) for array in gatherer.gather(self._arrays, rows)], None
        begin = self._row_starts[rows]
        sizes = self._row_starts[rows + 1] - begin
        ids, *others = self._arrays
        gathered = gatherer.gather([ids], ranges(begin, sizes)) + gatherer.gather(others, rows)
        return [to_device(array) for array in gathered], np.concatenate(([0], sizes.cumsum()))

    def _batches_of(
        self, tensors: list[Tensor], starts: npt.NDArray[np.int64] | None, batch_size: int
    ) -> Iterator[PackedBatch]:
        rows = len(tensors[LABELS])
        for first in range(0, rows, batch_size):
            end = min(first + batch_size, rows)
            of_ids = (first, end) if starts is None else (int(starts[first]), int(starts[end]))
            bounds = [of_ids, *[(first, end)] * (len(tensors) - 1)]
            yield tuple(self._slice(each, *place) for each, place in zip(tensors, bounds))

    def _slice(self, tensor: Tensor, first: int, end: int) -> Tensor:
        begin = [first] + [0] * (len(tensor.shape) - 1)
        return self._tf.slice(tensor, begin, [end - first, *tensor.shape[1:]])


def min_streaming_bytes(rows: int, bytes_per_row: int, batch_size: int) -> int:
    """Return the bytes that streaming needs: the current batch, its chunk, and the next chunk.

    >>> min_streaming_bytes(1000, 160, 64)
    30720
    """
    return 3 * min(batch_size, rows) * bytes_per_row


class _Gatherer:
    """Threads that copy rows of arrays, each a part of them, to memory TensorFlow can share."""

    def __init__(self) -> None:
        self._threads = cpu_threads()
        self._pool = ThreadPoolExecutor(self._threads, _NAME)

    def __enter__(self) -> _Gatherer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def gather(self, arrays: Sequence[Array], rows: Array) -> list[npt.NDArray[np.float32]]:
        """Return the rows of each array, in this order."""
        parts = np.array_split(np.arange(len(rows)), self._threads)
        # Each thread reads the file in its order.
        ordered = list(self._pool.map(lambda part: part[np.argsort(rows[part])], parts))
        outs = [_aligned((len(rows), *array.shape[1:])) for array in arrays]
        for array, out in zip(arrays, outs):
            list(self._pool.map(partial(_copy, array, rows, out), ordered))
        return outs


def _copy(array: Array, rows: Array, out: Array, to: Array) -> None:
    """Copy array[rows[to]] to out[to]."""
    for first in range(0, len(to), ROWS_AT_ONCE):
        some = to[first : first + ROWS_AT_ONCE]
        out[some] = np.take(array, rows[some], axis=0)


def _aligned(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    size = 4 * int(np.prod(shape))
    room = np.empty(size + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + size].view(np.float32).reshape(shape)
