"""Read the parquet files of one split into arrays, and check the values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.column_arrays import ColumnArrays
from cowclip_merlin.loading.column_checks import (
    FileChunk,
    check_columns_present,
    check_no_nulls,
    checked_block,
    column_names,
)
from cowclip_merlin.loading.id_layout import ColumnIds
from cowclip_merlin.system.files import reading_parquet
from cowclip_merlin.targets import only_clicks

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.workflows import PreparedData

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
        return _joined(data, list(checked_blocks(data, split, chunks, arrays)))
    whole, end = ColumnArrays.empty(data, data.rows[split], arrays), 0
    for block in checked_blocks(data, split, chunks, arrays):
        start, end = end, end + len(block)
        for name, array in whole.arrays.items():
            array[start:end] = getattr(block, name)
    return whole


def _joined(data: PreparedData, blocks: Sequence[ColumnArrays]) -> ColumnArrays:
    """Join blocks with multi-valued columns."""
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
    import pyarrow.parquet as pq

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
