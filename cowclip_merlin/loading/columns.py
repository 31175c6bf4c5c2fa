"""Read the parquet files of one split into arrays, and check the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.errors import InputError, StackError
from cowclip_merlin.loading.column_arrays import ColumnArrays, ColumnIds, vector_places
from cowclip_merlin.system.files import reading_parquet
from cowclip_merlin.targets import Target, only_clicks
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.workflows import PreparedData


@dataclass(frozen=True)
class FileChunk:
    """Some rows of one parquet file.

    Attributes:
        file: the parquet file, for error messages.
        rows: number of rows.
        column: function of a column name; returns the values [rows], on the host or a GPU; of
            a multi-valued column the values of all rows, and how many each row has.
    """

    file: Path
    rows: int
    column: Callable[[str], ColumnIds]


def column_names(data: PreparedData) -> list[str]:
    """Return the names of all columns to read."""
    weights = [data.log_format.weight] if data.log_format.weight else []
    labels = data.log_format.labels
    return [*labels, *data.categorical, *data.continuous, *weights, *data.log_format.vectors]


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


def checked_block(chunk: FileChunk, data: PreparedData, arrays: ModuleType) -> ColumnArrays:
    """Return some rows as arrays of the module `arrays`: NumPy or CuPy.

    Raises:
        InputError: if a value is not allowed; see `read_columns`.
    """
    block = ColumnArrays.empty(data, chunk.rows, arrays)
    sizes = data.cardinalities
    block = block.with_ids([_checked_ids(chunk, name, sizes[name]) for name in data.categorical])
    for j, name in enumerate(data.continuous):
        block.continuous[:, j] = _checked_numbers(chunk, name)
    for name, places in vector_places(data.log_format).items():
        block.continuous[:, places] = _checked_vectors(chunk, name, data.log_format.vectors[name])
    if not only_clicks(data.targets):
        _fill_labels(block, chunk, data.targets)
    else:
        block.label[:] = _checked_labels(chunk, data.label)
    if block.weight is not None:
        block.weight[:] = _checked_weights(chunk, data.log_format.weight)
    return block


# The checks use only operators and ufuncs, because these also work on CuPy arrays.


def _checked_ids(chunk: FileChunk, name: str, cardinality: int) -> ColumnIds:
    values = chunk.column(name)
    ids = values[0] if isinstance(values, tuple) else values
    check_ids_in_vocabulary(chunk.file, name, ids, cardinality)
    return values


def check_ids_in_vocabulary(file: Path, name: str, ids: Array, cardinality: int) -> None:
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


def _checked_numbers(chunk: FileChunk, name: str) -> Array:
    values = chunk.column(name)
    wrong = ~np.isfinite(values)
    if wrong.any():
        raise InputError(
            f"{chunk.file}: column {name!r} contains {values[wrong][0]}; fill it, then prepare "
            "again"
        )
    return values


def _checked_vectors(chunk: FileChunk, name: str, length: int) -> Array:
    """Return the vectors of a column, [rows, length]."""
    values, lengths = chunk.column(name)
    if (lengths != length).any():
        raise InputError(
            f"{chunk.file}: column {name!r} has a vector of {lengths[lengths != length][0]} "
            f"numbers, not {length}; prepare the data again"
        )
    if not np.isfinite(values).all():
        raise InputError(
            f"{chunk.file}: column {name!r} contains {values[~np.isfinite(values)][0]}; prepare "
            "the data again"
        )
    return values.reshape(-1, length)


def _checked_labels(chunk: FileChunk, name: str) -> Array:
    values = chunk.column(name)
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        raise InputError(
            f"{chunk.file}: label {name!r} contains {values[wrong][0]}, neither 0 nor 1"
        )
    return values


def _fill_labels(block: ColumnArrays, chunk: FileChunk, targets: Sequence[Target]) -> None:
    """Copy the labels of several targets into a block, and check them."""
    for column, (name, regression) in enumerate(targets):
        values = chunk.column(name)
        known = values == values
        wrong = known & (~np.isfinite(values) if regression else (values != 0) & (values != 1))
        if wrong.any():
            kind = "no finite number" if regression else "neither 0 nor 1"
            raise InputError(f"{chunk.file}: label {name!r} contains {values[wrong][0]}, {kind}")
        block.label[:, column] = values
    if np.isnan(block.label).all(axis=1).any():
        names = ", ".join(name for name, _ in targets)
        raise InputError(f"{chunk.file}: a row has no label of {names}; prepare the data again")


def _checked_weights(chunk: FileChunk, name: str) -> Array:
    values = _checked_numbers(chunk, name)
    if (values < 0).any():
        raise InputError(
            f"{chunk.file}: weight {name!r} contains {values[values < 0][0]}, below 0; prepare the "
            "data again"
        )
    return values


ROWS_AT_ONCE = 1 << 18


def read_columns(data: PreparedData, split: str) -> ColumnArrays:
    """Read the parquet files of one split into host memory.

    Args:
        data: the prepared folder.
        split: "train" or "test".

    Raises:
        InputError: if a file lacks a column, an id is outside the vocabulary, a continuous
            value is not finite, a label is not 0 or 1, or a weight is not finite or negative. With
            several targets, if a row has no label, or that of a regression is infinite.
    """
    return concatenate(data, split, read_chunks(data, split))


def concatenate(
    data: PreparedData, split: str, chunks: Iterable[FileChunk], arrays: ModuleType = np
) -> ColumnArrays:
    """Concatenate all rows of a split with the module `arrays`: NumPy or CuPy."""
    if data.log_format.multi:
        return joined(data, list(checked_blocks(data, split, chunks, arrays)))
    whole, end = ColumnArrays.empty(data, data.rows[split], arrays), 0
    for block in checked_blocks(data, split, chunks, arrays):
        start, end = end, end + len(block)
        for name, array in whole.arrays.items():
            array[start:end] = getattr(block, name)
    return whole


def joined(data: PreparedData, blocks: Sequence[ColumnArrays]) -> ColumnArrays:
    """Return the rows of some blocks in host memory."""
    blocks = [ColumnArrays.empty(data, 0), *blocks]
    names = blocks[0].arrays
    arrays = {name: np.concatenate([getattr(each, name) for each in blocks]) for name in names}
    return replace(blocks[0], **arrays)


def checked_blocks(
    data: PreparedData, split: str, chunks: Iterable[FileChunk], arrays: ModuleType = np
) -> Iterator[ColumnArrays]:
    """Yield the chunks of a split as checked arrays; check the number of rows, too."""
    rows, end = data.rows[split], 0
    for chunk in chunks:
        end += chunk.rows
        if end > rows:
            raise InputError(
                f"{chunk.file}: more rows than in dataset.json; prepare the data again"
            )
        yield checked_block(chunk, data, arrays)
    if end != rows:
        raise InputError(
            f"{data.path}: {split}/ has {end} rows, but dataset.json has {rows}; prepare it again"
        )


def read_chunks(data: PreparedData, split: str) -> Iterator[FileChunk]:
    """Read the files of a split in chunks of rows, with PyArrow."""
    try:
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise StackError(
            f"{data.path}: its rows are in parquet files; pip install pyarrow, or let cowclip "
            "train read the folder first, which leaves them as arrays of NumPy"
        ) from error

    for file in data.files(split):
        data.verify(file)
        with reading_parquet(file):
            parquet = pq.ParquetFile(file)
            may_miss = () if only_clicks(data.targets) else data.log_format.labels
            check_columns_present(file, parquet.schema_arrow.names, data)
            for batch in parquet.iter_batches(batch_size=ROWS_AT_ONCE, columns=column_names(data)):
                yield FileChunk(
                    file,
                    batch.num_rows,
                    lambda name, b=batch, f=file, n=may_miss: _values(f, b, name, n),
                )


def _values(file: Path, batch: pa.RecordBatch, name: str, nullable: Sequence[str]) -> ColumnIds:
    import pyarrow as pa

    column = batch.column(name)
    if name not in nullable:  # other labels: Arrow converts a null to NaN
        check_no_nulls(file, name, column.null_count)
    if not pa.types.is_list(column.type):
        return column.to_numpy(zero_copy_only=False)
    values = column.flatten()
    check_no_nulls(file, name, values.null_count)
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    return values.to_numpy(zero_copy_only=False), lengths
