"""Read parquet files directly into GPU memory with cuDF, if it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.kernels.cuda.nvrtc import load_nvrtc
from cowclip_merlin.loading.column_arrays import ColumnArrays
from cowclip_merlin.loading.column_checks import (
    FileChunk,
    check_columns_present,
    check_no_nulls,
    column_names,
)
from cowclip_merlin.loading.columns import concatenate
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
    finish()
    return columns


def finish() -> None:
    """Wait for CuPy, and give memory that it no longer uses back to the GPU.

    TensorFlow's stream does not wait for CuPy's stream, where the last copies may still run.
    """
    import cupy

    cupy.cuda.get_current_stream().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()


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
