"""Whether the rows of a run stay on the device or are streamed to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import cudf_reader
from cowclip_merlin.loading.cache import open_columns
from cowclip_merlin.loading.columns import ColumnArrays
from cowclip_merlin.loading.device_data import DeviceData
from cowclip_merlin.loading.row_order import Data
from cowclip_merlin.loading.streamed_data import StreamedData, min_streaming_bytes

if TYPE_CHECKING:
    from cowclip_merlin.workflows import PreparedData

# Of the free memory; the rest is for activations, gradients and the optimizer's temporaries.
SHARE_OF_FREE = 0.75
ORDER_BYTES = 8  # an epoch's permutation on the device, int64


@dataclass(frozen=True)
class LoadedData:
    """Both splits of a run, ready for its steps.

    Attributes:
        train: training rows.
        test: rows that are scored.
    """

    train: Data
    test: Data

    def __str__(self) -> str:
        """Where they are, with bytes per row and in all, for the log."""
        size = (self.train.rows + self.test.rows) * self.train.bytes_per_row
        how = {True: "on the device", False: "streamed"}
        return (
            f"train rows {how[self.train.resident]}, scored rows {how[self.test.resident]}: "
            f"{self.train.bytes_per_row} bytes a row, {size / 1e6:,.1f} MB in all"
        )


def megabytes_to_bytes(megabytes: float | None) -> int | None:
    """`--data-memory` in bytes.

    Raises:
        InputError: it is no positive number.

    >>> megabytes_to_bytes(1.5)
    1500000
    """
    if megabytes is None:
        return None
    if not (math.isfinite(megabytes) and megabytes > 0):
        raise InputError(f"--data-memory is {megabytes:g}; give a number of MB above 0")
    return int(megabytes * 1e6)


def free_memory() -> int | None:
    """Bytes that data may take on the device; None: no limit, as on the CPU."""
    if not compat.tensorflow().config.list_logical_devices("GPU"):
        return None
    try:
        import cupy
    except ImportError:
        return None
    return int(SHARE_OF_FREE * cupy.cuda.runtime.memGetInfo()[0])


def open_train_columns(data: PreparedData, *, memory: int | None = None) -> ColumnArrays:
    """The train split, read on the GPU if that can be and both splits fit, else `open_columns`.

    Args:
        data: the prepared folder.
        memory: bytes; None: what is free on the GPU.
    """
    if cudf_reader.is_available():
        room = free_memory() if memory is None else memory
        row = ColumnArrays.empty(data, 0).bytes_per_row + ORDER_BYTES
        need = row * (data.rows["train"] + data.rows["test"])
        if room is not None and need <= room:
            return cudf_reader.read_columns_on_gpu(data, "train")
    return open_columns(data, "train")


def load_to_device(
    train: ColumnArrays,
    test: ColumnArrays,
    *,
    batch_size: int,
    scoring_batch: int,
    memory: int | None = None,
) -> LoadedData:
    """Put both splits on the device if they fit, else the train split, else stream both.

    Args:
        train: training rows.
        test: test rows.
        batch_size: rows of a training step.
        scoring_batch: rows of a scoring step.
        memory: bytes; None: what is free on a GPU, no limit on the CPU.

    Raises:
        InputError: not even three batches fit.
    """
    if memory is None and (memory := free_memory()) is not None and train.on_gpu:
        memory += _resident_bytes(train)  # which is in place already, so not free any more
    if memory is None:
        return LoadedData(DeviceData(train), DeviceData(test))
    left = memory - _resident_bytes(train)
    if train.on_gpu or left >= min(_resident_bytes(test), _streaming_bytes(test, scoring_batch)):
        return LoadedData(
            DeviceData(train), load_split_to_device(test, batch_size=scoring_batch, memory=left)
        )
    _check_memory(
        memory, max(_streaming_bytes(train, batch_size), _streaming_bytes(test, scoring_batch))
    )
    # Training and scoring take turns, so each may use all of it.
    return LoadedData(StreamedData(train, memory=memory), StreamedData(test, memory=memory))


def load_split_to_device(
    columns: ColumnArrays, *, batch_size: int, memory: int | None = None
) -> Data:
    """One split on the device if it fits, else streamed.

    Args:
        columns: its rows.
        batch_size: rows of a step.
        memory: bytes; None: what is free on a GPU, no limit on the CPU.

    Raises:
        InputError: not even three batches fit.
    """
    memory = free_memory() if memory is None else memory
    if memory is None or _resident_bytes(columns) <= memory:
        return DeviceData(columns)
    _check_memory(memory, _streaming_bytes(columns, batch_size))
    return StreamedData(columns, memory=memory)


def _check_memory(memory: int, least: int) -> None:
    if memory < least:
        raise InputError(
            f"--data-memory: {memory / 1e6:g} MB are less than three batches; give at least "
            f"{math.ceil(least / 1e3) / 1e3:g}"
        )


def _resident_bytes(columns: ColumnArrays) -> int:
    return len(columns) * (columns.bytes_per_row + ORDER_BYTES)


def _streaming_bytes(columns: ColumnArrays, batch_size: int) -> int:
    return min_streaming_bytes(len(columns), columns.bytes_per_row, batch_size)
