"""Read the parquet files of one split into arrays, and check the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import reading_parquet

if TYPE_CHECKING:
    from cowclip_merlin.workflows import PreparedData

ROWS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class ColumnArrays:
    """One split as arrays: in host memory, mapped from files, or on a GPU.

    Attributes:
        ids: categorical ids, int32 [n, F], in the data set's field order.
        continuous: float32 [n, C].
        label: float32 [n], 0 or 1.

    >>> ColumnArrays(np.zeros((2, 26), np.int32), np.zeros((2, 13), np.float32),
    ...         np.zeros(2, np.float32)).bytes_per_row
    160
    """

    ids: npt.NDArray[np.int32]
    continuous: npt.NDArray[np.float32]
    label: npt.NDArray[np.float32]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.label)

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row on the device."""
        return 4 * (self.ids.shape[1] + self.continuous.shape[1] + 1)

    @property
    def on_gpu(self) -> bool:
        """Whether these are CuPy arrays."""
        return not isinstance(self.label, np.ndarray)

    @classmethod
    def empty(cls, data: PreparedData, rows: int, arrays: Any = np) -> ColumnArrays:
        """Allocate arrays for `rows` rows with the module `arrays`: NumPy or CuPy.

        Raises:
            InputError: if a column has several values per row.
        """
        if data.log_format.multi:
            raise InputError(
                f"{data.path}: column {min(data.log_format.multi)!r} has several values per row, "
                "which the four models do not read; prepare without `multi`, or train Merlin's "
                "own models"
            )
        return cls(
            ids=arrays.empty((rows, len(data.categorical)), np.int32),
            continuous=arrays.empty((rows, len(data.continuous)), np.float32),
            label=arrays.empty(rows, np.float32),
        )


@dataclass(frozen=True)
class FileChunk:
    """Some rows of one parquet file.

    Attributes:
        file: the parquet file, for error messages.
        rows: number of rows.
        column: function of a column name; returns the values [rows], on the host or a GPU.
    """

    file: Path
    rows: int
    column: Callable[[str], Any]


def read_columns(data: PreparedData, split: str) -> ColumnArrays:
    """Read the parquet files of one split into host memory.

    Args:
        data: the prepared folder.
        split: "train" or "test".

    Raises:
        InputError: if a file lacks a column, an id is outside the vocabulary, a continuous
            value is not finite, or a label is not 0 or 1.
    """
    return concatenate(data, split, read_chunks(data, split))


def concatenate(
    data: PreparedData, split: str, chunks: Iterable[FileChunk], arrays: Any = np
) -> ColumnArrays:
    """Concatenate all rows of a split with the module `arrays`: NumPy or CuPy."""
    whole, end = ColumnArrays.empty(data, data.rows[split], arrays), 0
    for block in checked_blocks(data, split, chunks, arrays):
        start, end = end, end + len(block)
        whole.ids[start:end] = block.ids
        whole.continuous[start:end] = block.continuous
        whole.label[start:end] = block.label
    return whole


def checked_blocks(
    data: PreparedData, split: str, chunks: Iterable[FileChunk], arrays: Any = np
) -> Iterator[ColumnArrays]:
    """Yield the chunks of a split as checked arrays; check the number of rows, too."""
    rows, end = data.rows[split], 0
    for chunk in chunks:
        end += chunk.rows
        if end > rows:
            raise InputError(
                f"{chunk.file}: more rows than in dataset.json; prepare the data again"
            )
        yield _checked_block(chunk, data, arrays)
    if end != rows:
        raise InputError(
            f"{data.path}: {split}/ has {end} rows, but dataset.json has {rows}; prepare it again"
        )


def _checked_block(chunk: FileChunk, data: PreparedData, arrays: Any) -> ColumnArrays:
    block = ColumnArrays.empty(data, chunk.rows, arrays)
    for j, name in enumerate(data.categorical):
        block.ids[:, j] = _checked_ids(chunk, name, data.cardinalities[name])
    for j, name in enumerate(data.continuous):
        block.continuous[:, j] = _checked_numbers(chunk, name)
    block.label[:] = _checked_labels(chunk, data.label)
    return block


def column_names(data: PreparedData) -> list[str]:
    """Return the names of all columns to read."""
    return [data.label, *data.categorical, *data.continuous]


def read_chunks(data: PreparedData, split: str) -> Iterator[FileChunk]:
    """Read the files of a split in chunks of rows, with PyArrow."""
    import pyarrow.parquet as pq

    for file in data.files(split):
        data.verify(file)
        with reading_parquet(file):
            parquet = pq.ParquetFile(file)
            check_columns_present(file, parquet.schema_arrow.names, data)
            for batch in parquet.iter_batches(batch_size=ROWS_AT_ONCE, columns=column_names(data)):
                yield FileChunk(
                    file, batch.num_rows, lambda name, b=batch, f=file: _values(f, b, name)
                )


def check_columns_present(file: Path, present: Iterable[str], data: PreparedData) -> None:
    """Check that a file has all columns.

    Raises:
        InputError: if a column is missing.
    """
    missing = [name for name in column_names(data) if name not in set(present)]
    if missing:
        raise InputError(f"{file}: column {missing[0]!r} is missing; prepare the data again")


def check_no_nulls(file: Path, name: str, nulls: int) -> None:
    """Check that a column has no nulls.

    Raises:
        InputError: if it has nulls.
    """
    if nulls:
        raise InputError(f"{file}: column {name!r} contains a null; prepare the data again")


def _values(file: Path, batch: Any, name: str) -> npt.NDArray[Any]:
    column = batch.column(name)
    check_no_nulls(file, name, column.null_count)
    return column.to_numpy(zero_copy_only=False)


# The checks use only operators and ufuncs, because these also work on CuPy arrays.


def _checked_ids(chunk: FileChunk, name: str, cardinality: int) -> Any:
    values = chunk.column(name)
    check_ids_in_vocabulary(chunk.file, name, values, cardinality)
    return values


def check_ids_in_vocabulary(file: Path, name: str, ids: Any, cardinality: int) -> None:
    """Check that all ids of a column are in its vocabulary.

    Raises:
        InputError: if an id is outside.
    """
    wrong = (ids < 0) | (ids >= cardinality)
    if wrong.any():
        raise InputError(
            f"{file}: column {name!r} contains id {ids[wrong][0]}, outside its vocabulary of "
            f"{cardinality} ids; use files from the same call of prepare"
        )


def _checked_numbers(chunk: FileChunk, name: str) -> Any:
    values = chunk.column(name)
    wrong = ~np.isfinite(values)
    if wrong.any():
        raise InputError(
            f"{chunk.file}: column {name!r} contains {values[wrong][0]}; fill it, then prepare "
            "again"
        )
    return values


def _checked_labels(chunk: FileChunk, name: str) -> Any:
    values = chunk.column(name)
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        raise InputError(
            f"{chunk.file}: label {name!r} contains {values[wrong][0]}, neither 0 nor 1"
        )
    return values
