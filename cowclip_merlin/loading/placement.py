"""Decide whether the rows of a run stay on the device or are streamed to it; read them by cuDF."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.cuda.nvrtc import load_nvrtc
from cowclip_merlin.loading.cache import open_columns, open_joined
from cowclip_merlin.loading.column_arrays import ColumnArrays
from cowclip_merlin.loading.columns import (
    FileChunk,
    check_columns_present,
    check_no_nulls,
    column_names,
    concatenate,
)
from cowclip_merlin.loading.device_data import DeviceData
from cowclip_merlin.loading.row_order import NUMPY, PHILOX, Data, train_validation_split
from cowclip_merlin.loading.streamed_data import StreamedData, min_streaming_bytes
from cowclip_merlin.targets import only_clicks
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    import cudf

    from cowclip_merlin.workflows import PreparedData


def is_available() -> bool:
    """Return whether TensorFlow uses a GPU and cuDF is installed."""
    gpus = compat.tensorflow().config.list_logical_devices("GPU")
    return bool(gpus) and importlib.util.find_spec("cudf") is not None


def read_columns_on_gpu(data: PreparedData, split: str) -> ColumnArrays:
    """Read the columns of a split into CuPy arrays, with the checks of `read_columns`.

    Raises:
        InputError: as `read_columns`.
    """
    load_nvrtc()  # CuPy compiles its kernels
    import cupy

    columns = concatenate(data, split, _read_chunks(data, split), cupy)
    # TensorFlow's stream does not wait for CuPy's stream, where the last copies may still run.
    cupy.cuda.get_current_stream().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()  # what it no longer uses
    return columns


def _read_chunks(data: PreparedData, split: str) -> Iterator[FileChunk]:
    import cudf
    import pyarrow.parquet as pq

    for file in data.files(split):
        data.verify(file)
        check_columns_present(file, pq.read_schema(file).names, data)
        frame = cudf.read_parquet(file, columns=column_names(data))
        yield FileChunk(file, len(frame), lambda name, x=frame, f=file: _values(f, x, name))


def _values(file: Path, frame: cudf.DataFrame, name: str) -> Array:
    check_no_nulls(file, name, frame[name].null_count)
    return frame[name].values


# Share of the free memory; activations, gradients and the optimizer's temporaries get the rest.
SHARE_OF_FREE = 0.75
ORDER_BYTES = 8  # permutation of an epoch on the device, int64


@dataclass(frozen=True)
class LoadedData:
    """Both splits of a run, ready for its steps.

    Attributes:
        train: training rows.
        test: rows to evaluate on.
    """

    train: Data
    test: Data

    def __str__(self) -> str:
        """Describe where the rows are, with bytes per row and in total, for the log."""
        size = (self.train.rows + self.test.rows) * self.train.bytes_per_row
        how = {True: "on the device", False: "streamed"}
        return (
            f"train rows {how[self.train.resident]}, scored rows {how[self.test.resident]}: "
            f"{self.train.bytes_per_row} bytes per row, {size / 1e6:,.1f} MB in total"
        )


def megabytes_to_bytes(megabytes: float | None) -> int | None:
    """Convert `--data-memory` to bytes.

    Raises:
        InputError: if it is not a positive number.

    >>> megabytes_to_bytes(1.5)
    1500000
    """
    if megabytes is None:
        return None
    if not (math.isfinite(megabytes) and megabytes > 0):
        raise InputError(f"`data_memory` is {megabytes:g}; use a number of MB above 0")
    return int(megabytes * 1e6)


def free_memory() -> int | None:
    """Return how many bytes data may use on the device; None: no limit, as on the CPU."""
    if not compat.tensorflow().config.list_logical_devices("GPU"):
        return None
    try:
        import cupy
    except ImportError:
        return None
    return int(SHARE_OF_FREE * cupy.cuda.runtime.memGetInfo()[0])


def usual_generator(data: Data) -> str:
    """Return the generator of the order of rows: "philox" where a GPU has them, else "numpy"."""
    gpus = compat.tensorflow().config.list_logical_devices("GPU")
    return PHILOX if gpus and data.resident else NUMPY


def open_train_columns(data: PreparedData, *, memory: int | None = None) -> ColumnArrays:
    """Read the train split on the GPU if cuDF is there and both splits fit, else `open_columns`.

    Lists and several targets are read on the host.

    Args:
        data: the prepared folder.
        memory: bytes; None: the free memory of the GPU.
    """
    if _fits_on_gpu(data, sum(data.rows.values()), memory):
        return read_columns_on_gpu(data, "train")
    return open_columns(data, "train")


def open_train_and(
    data: PreparedData, split: str, *, memory: int | None = None
) -> tuple[ColumnArrays, ColumnArrays]:
    """Read the train split and another one as `open_train_columns` reads one."""
    on_gpu = _fits_on_gpu(data, sum(data.rows.values()), memory)
    read = read_columns_on_gpu if on_gpu else open_columns
    return read(data, "train"), read(data, split)


def open_all_and_test(data: PreparedData) -> tuple[ColumnArrays, ColumnArrays]:
    """Open the train and the validation rows as one, and the test rows, on the host."""
    return open_joined(data, "train", "validation"), open_columns(data, "test")


def open_train_and_validation(
    data: PreparedData, fraction: float, how: str = "random", *, memory: int | None = None
) -> tuple[ColumnArrays, ColumnArrays]:
    """Read the train split, on the GPU if it fits there, and hold out rows of it.

    Args:
        data: the prepared folder.
        fraction: as for `train_validation_split`.
        how: likewise.
        memory: bytes; None: the free memory of the GPU.

    Raises:
        InputError: as `train_validation_split`.
    """
    on_gpu = _fits_on_gpu(data, data.rows["train"], memory)
    read = read_columns_on_gpu if on_gpu else open_columns
    return train_validation_split(read(data, "train"), fraction, how)


def _fits_on_gpu(data: PreparedData, rows: int, memory: int | None) -> bool:
    """Whether cuDF can read so many rows into the memory of a GPU."""
    lists = data.log_format.multi or data.log_format.vectors
    if not is_available() or lists or not only_clicks(data.targets):
        return False
    room = free_memory() if memory is None else memory
    row = ColumnArrays.empty(data, 0).bytes_per_row + ORDER_BYTES
    return room is not None and row * rows <= room


def load_to_device(
    train: ColumnArrays,
    test: ColumnArrays,
    *,
    batch_size: int,
    scoring_batch: int,
    memory: int | None = None,
) -> LoadedData:
    """Copy both to the device if they fit, else the train split, else stream both.

    Rows that are parts of one split share its arrays there.

    Args:
        train: training rows.
        test: test rows.
        batch_size: rows of a training step.
        scoring_batch: rows of an evaluation step.
        memory: bytes; None: the free memory of a GPU, no limit on the CPU.

    Raises:
        InputError: if three batches do not fit.
    """
    shared = test.ids is train.ids  # parts of one split, which is on the device once
    sizes = [_resident_bytes(train), ORDER_BYTES * len(test) if shared else _resident_bytes(test)]
    if memory is None and (memory := free_memory()) is not None:
        # What is on the GPU already is no longer free.
        memory += sum(size for size, split in zip(sizes, (train, test)) if split.on_gpu)
    if memory is None or (shared and (train.on_gpu or sum(sizes) <= memory)):
        resident = DeviceData(train)
        return LoadedData(resident, DeviceData(test, beside=resident if shared else None))
    left = memory - sizes[0]
    if not shared and (
        train.on_gpu or left >= min(sizes[1], _streaming_bytes(test, scoring_batch))
    ):
        return LoadedData(
            DeviceData(train), load_split_to_device(test, batch_size=scoring_batch, memory=left)
        )
    _check_memory(
        memory, max(_streaming_bytes(train, batch_size), _streaming_bytes(test, scoring_batch))
    )
    # Training and evaluation take turns, so each may use all the memory.
    return LoadedData(StreamedData(train, memory=memory), StreamedData(test, memory=memory))


def load_split_to_device(
    columns: ColumnArrays, *, batch_size: int, memory: int | None = None
) -> Data:
    """Copy one split to the device if it fits, else stream it.

    Args:
        columns: rows of the split.
        batch_size: rows of a step.
        memory: bytes; None: the free memory of a GPU, no limit on the CPU.

    Raises:
        InputError: if three batches do not fit.
    """
    memory = free_memory() if memory is None else memory
    if memory is None or _resident_bytes(columns) <= memory:
        return DeviceData(columns)
    _check_memory(memory, _streaming_bytes(columns, batch_size))
    return StreamedData(columns, memory=memory)


def _check_memory(memory: int, least: int) -> None:
    if memory < least:
        raise InputError(
            f"`data_memory`: {memory / 1e6:g} MB hold less than three batches; use at least "
            f"{math.ceil(least / 1e3) / 1e3:g}"
        )


def _resident_bytes(columns: ColumnArrays) -> int:
    return len(columns.label) * columns.bytes_per_row + len(columns) * ORDER_BYTES


def _streaming_bytes(columns: ColumnArrays, batch_size: int) -> int:
    return min_streaming_bytes(len(columns), columns.bytes_per_row, batch_size)
