"""Read the parquet files of one split into arrays, and check the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.batch import ranges
from cowclip_merlin.checks import ClassWeights
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.id_layout import ColumnIds, IdLayout
from cowclip_merlin.system.files import reading_parquet
from cowclip_merlin.targets import Target, only_clicks
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.workflows import LogFormat, PreparedData

ROWS_AT_ONCE = 1 << 18
_START_BYTES = 8  # of the position of a row's first id


@dataclass(frozen=True)
class ColumnArrays:
    """One split as arrays: in host memory, mapped from files, or on a GPU.

    Attributes:
        ids: categorical ids, int32 [n, F], in the data set's field order; [m] with multi-valued
            columns, ordered as `layout` says.
        continuous: float32 [n, C], the continuous columns and then the numbers of the vectors.
        label: float32 [n], 0 or 1; with other targets [n, T], where a missing label is NaN.
        lengths: number of ids of each row in the multi-valued columns, int32 [n, M]; None: each
            column has one id per row.
        layout: the multi-valued columns; None: there are none.
        weight: float32 [n], at least 0; None: all rows weigh the same.
        class_weights: weights of the labels 0 and 1 in the loss; None: both are 1.

    >>> ColumnArrays(np.zeros((2, 26), np.int32), np.zeros((2, 13), np.float32),
    ...         np.zeros(2, np.float32)).bytes_per_row
    160
    """

    ids: npt.NDArray[np.int32]
    continuous: npt.NDArray[np.float32]
    label: npt.NDArray[np.float32]
    lengths: npt.NDArray[np.int32] | None = None
    layout: IdLayout | None = None
    weight: npt.NDArray[np.float32] | None = None
    class_weights: ClassWeights | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.label)

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row on the device, the mean if rows differ."""
        others = self.continuous.shape[1] + self.targets + (self.weight is not None)
        if self.lengths is None:
            return 4 * (self.ids.shape[1] + others)
        mean = -(-self.ids.size // max(len(self), 1))
        return 4 * (mean + self.lengths.shape[1] + others) + _START_BYTES

    @property
    def targets(self) -> int:
        """Number of targets, T."""
        return 1 if self.label.ndim == 1 else self.label.shape[1]

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays that the data set has, by name: weights after labels, lengths last."""
        names = ("ids", "continuous", "label", "weight", "lengths")
        return {n: array for n in names if (array := getattr(self, n)) is not None}

    @property
    def on_gpu(self) -> bool:
        """Whether these are CuPy arrays."""
        return not isinstance(self.label, np.ndarray)

    @classmethod
    def empty(cls, data: PreparedData, rows: int, arrays: ModuleType = np) -> ColumnArrays:
        """Allocate arrays for `rows` rows with the module `arrays`: NumPy or CuPy.

        With multi-valued columns, the rows have no ids yet; `with_ids` adds them.
        """
        fields, layout = len(data.categorical), id_layout(data)
        return cls(
            ids=arrays.empty((rows, fields) if layout is None else 0, np.int32),
            lengths=None if layout is None else arrays.empty((rows, len(layout.multi)), np.int32),
            layout=layout,
            continuous=arrays.empty((rows, sum(data.log_format.widths.values())), np.float32),
            label=arrays.empty((rows, *_axis_of_targets(data)), np.float32),
            weight=arrays.empty(rows, np.float32) if data.log_format.weight else None,
        )

    def with_ids(self, columns: Sequence[ColumnIds]) -> ColumnArrays:
        """Return these rows with the ids of each column.

        Args:
            columns: ids [n] of each column, or ids and lengths of a multi-valued one; see
                `IdLayout.join`.
        """
        if self.layout is None:
            for j, column in enumerate(columns):
                self.ids[:, j] = column
            return self
        ids, lengths = self.layout.join(columns)
        return replace(self, ids=ids, lengths=lengths)

    def take(self, which: Array) -> ColumnArrays:
        """Return some rows: those of a mask [n], or by their numbers, in NumPy arrays."""
        if self.on_gpu:
            import cupy

            which = cupy.asarray(which)
        if self.layout is None:
            return replace(self, **{name: array[which] for name, array in self.arrays.items()})
        rows = {name: array[which] for name, array in self.arrays.items() if name != "ids"}
        starts = self.layout.starts(self.lengths)
        of_row = np.diff(starts)[which]
        return replace(self, ids=self.ids[ranges(starts[:-1][which], of_row)], **rows)

    def column(self, j: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the ids of column number `j`, and the number of ids of each row, [n]."""
        if self.layout is None:
            return self.ids[:, j], np.ones(len(self), np.int32)
        of_cell = self.layout.of_all_columns(self.lengths)
        first = self.layout.starts(self.lengths)[:-1] + of_cell[:, :j].sum(axis=1)
        return self.ids[ranges(first, of_cell[:, j])], of_cell[:, j]


def on_host(array: Array | None) -> Array | None:
    """Return a NumPy array of the values of a NumPy or CuPy array.

    >>> on_host(np.zeros(2)).tolist(), on_host(None)
    ([0.0, 0.0], None)
    """
    return array.get() if hasattr(array, "get") else array


def _axis_of_targets(data: PreparedData) -> tuple[int, ...]:
    """Return the second axis of the labels; none with one label of 0 and 1."""
    return () if only_clicks(data.targets) else (len(data.targets),)


def id_layout(data: PreparedData) -> IdLayout | None:
    """Return where the multi-valued columns of a prepared folder are; None without one."""
    names = data.categorical
    multi = tuple(names.index(name) for name in names if name in data.log_format.multi)
    return IdLayout(len(names), multi) if multi else None


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
        yield _checked_block(chunk, data, arrays)
    if end != rows:
        raise InputError(
            f"{data.path}: {split}/ has {end} rows, but dataset.json has {rows}; prepare it again"
        )


def _checked_block(chunk: FileChunk, data: PreparedData, arrays: ModuleType) -> ColumnArrays:
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


def column_names(data: PreparedData) -> list[str]:
    """Return the names of all columns to read."""
    weights = [data.log_format.weight] if data.log_format.weight else []
    labels = data.log_format.labels
    return [*labels, *data.categorical, *data.continuous, *weights, *data.log_format.vectors]


def vector_places(log_format: LogFormat) -> dict[str, slice]:
    """Return the columns of `ColumnArrays.continuous` that have the numbers of each vector."""
    places, first = {}, len(log_format.continuous)
    for name, length in log_format.vectors.items():
        places[name] = slice(first, first + length)
        first += length
    return places


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
