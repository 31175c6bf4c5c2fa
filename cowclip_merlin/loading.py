"""A prepared data set in the memory of the training device, read by row numbers.

The columns live in three tensors on the device that trains (GPU or CPU), so a batch is one
gather there and nothing crosses to the host while training. The order of an epoch is a seeded
permutation: batch `i` of epoch `e` is the same rows whenever it is asked for, which is what
makes a resumed run equal to an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError

if TYPE_CHECKING:
    from cowclip_merlin.workflows import PreparedData


@dataclass(frozen=True)
class Columns:
    """One split in host memory.

    Attributes:
        ids: categorical ids, int32 [n, F], in the data set's field order.
        continuous: float32 [n, C].
        label: float32 [n], 0 or 1.
    """

    ids: npt.NDArray[np.int32]
    continuous: npt.NDArray[np.float32]
    label: npt.NDArray[np.float32]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.label)

    @property
    def bytes_per_row(self) -> int:
        """Bytes that one row takes on the device."""
        return 4 * (self.ids.shape[1] + self.continuous.shape[1] + 1)


def read_columns(data: PreparedData, split: str) -> Columns:
    """Read the parquet files of one split.

    Args:
        data: the prepared folder.
        split: "train" or "test".

    Raises:
        InputError: a file lacks a column, an id lies outside the vocabulary, a continuous
            value is not finite, or a label is not 0 or 1.
    """
    files = data.files(split)
    rows = data.rows[split]
    columns = Columns(
        ids=np.empty((rows, len(data.categorical)), np.int32),
        continuous=np.empty((rows, len(data.continuous)), np.float32),
        label=np.empty(rows, np.float32),
    )
    end = 0
    for file in files:
        end = _read_file(file, data, columns, end)
    if end != rows:
        raise InputError(
            f"{data.path}: {split}/ holds {end} rows, dataset.json says {rows}; prepare it again"
        )
    return columns


def _read_file(file: Path, data: PreparedData, columns: Columns, start: int) -> int:
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(file)
    wanted = [data.label, *data.categorical, *data.continuous]
    missing = [name for name in wanted if name not in parquet.schema_arrow.names]
    if missing:
        raise InputError(f"{file}: column {missing[0]!r} is missing; prepare the data again")
    for batch in parquet.iter_batches(batch_size=1 << 18, columns=wanted):
        end = start + batch.num_rows
        if end > len(columns):
            raise InputError(f"{file}: more rows than dataset.json says; prepare the data again")
        for j, name in enumerate(data.categorical):
            columns.ids[start:end, j] = _ids(file, batch, name, data.cardinalities[name])
        for j, name in enumerate(data.continuous):
            columns.continuous[start:end, j] = _finite(file, batch, name)
        columns.label[start:end] = _labels(file, batch, data.label)
        start = end
    return start


def _values(file: Path, batch: Any, name: str) -> npt.NDArray[Any]:
    column = batch.column(name)
    if column.null_count:
        raise InputError(f"{file}: column {name!r} holds a null; prepare the data again")
    return column.to_numpy(zero_copy_only=False)


def _ids(file: Path, batch: Any, name: str, cardinality: int) -> npt.NDArray[Any]:
    values = _values(file, batch, name)
    wrong = (values < 0) | (values >= cardinality)
    if wrong.any():
        raise InputError(
            f"{file}: column {name!r} holds id {values[wrong][0]}, outside its vocabulary of "
            f"{cardinality} ids; use the files that the same prepare wrote"
        )
    return values


def _finite(file: Path, batch: Any, name: str) -> npt.NDArray[Any]:
    values = _values(file, batch, name)
    wrong = ~np.isfinite(values)
    if wrong.any():
        raise InputError(
            f"{file}: column {name!r} holds {values[wrong][0]}; fill it and prepare the data again"
        )
    return values


def _labels(file: Path, batch: Any, name: str) -> npt.NDArray[Any]:
    values = _values(file, batch, name)
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        raise InputError(f"{file}: label {name!r} holds {values[wrong][0]}, neither 0 nor 1")
    return values


class DeviceData:
    """Columns on the training device.

    >>> columns = Columns(np.array([[3], [5]], np.int32), np.ones((2, 1), np.float32),
    ...                   np.array([0, 1], np.float32))
    >>> inputs, label = DeviceData(columns).take([1])
    >>> inputs["categorical"].numpy().tolist(), label.numpy().tolist()
    ([[5]], [1.0])
    """

    def __init__(self, columns: Columns) -> None:
        from cowclip_merlin import compat

        self._tf = compat.tensorflow()
        self._ids = self._tf.constant(columns.ids)
        self._continuous = self._tf.constant(columns.continuous)
        self._label = self._tf.constant(columns.label)
        self.rows = len(columns)

    def take(self, rows: Any) -> tuple[dict[str, Any], Any]:
        """Inputs of a model and labels [b] for these row numbers, integer [b]."""
        gather = self._tf.gather
        inputs = {"categorical": gather(self._ids, rows)}
        if self._continuous.shape[1]:
            inputs["continuous"] = gather(self._continuous, rows)
        return inputs, gather(self._label, rows)


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Number of batches; the last one is smaller where `batch_size` does not divide `rows`.

    >>> steps_per_epoch(10, 4)
    3
    """
    return -(-rows // batch_size)


def batches(
    rows: int, batch_size: int, *, seed: int, epoch: int, start: int = 0
) -> Iterator[npt.NDArray[np.int32]]:
    """Row numbers of one epoch's batches, from batch `start` on.

    Every row comes exactly once per epoch. The last batch keeps its rows, however few, as in
    Keras and in the paper's runs; its loss is the mean over the rows it has.

    >>> [b.tolist() for b in batches(5, 2, seed=0, epoch=1, start=1)]
    [[3, 0], [2]]
    """
    order = np.random.default_rng([seed, epoch]).permutation(np.int32(rows)).astype(np.int32)
    for first in range(start * batch_size, rows, batch_size):
        yield order[first : first + batch_size]
