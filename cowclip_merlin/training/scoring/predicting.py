"""Predict the rows of a split on the device, and write tables of predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat, workers
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import Data
from cowclip_merlin.metrics.on_device import DeviceMetrics, metrics_on_device
from cowclip_merlin.system.console import progress
from cowclip_merlin.system.files import atomic_write, check_writable
from cowclip_merlin.targets import Target, only_clicks
from cowclip_merlin.types import Array, Function, Tensor
from cowclip_merlin.workers.agreement import arrays_of_all

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.loading.row_order import PackedBatch
    from cowclip_merlin.models import CTRModel


_ENDS = (".parquet", ".csv", ".csv.gz")


def check_table_file(path: Path | str, *, overwrite: bool = False) -> None:
    """Check before long work that a table can be written at a path.

    Raises:
        InputError: if its name says nothing about its form, or it cannot be written.

    >>> check_table_file("scores.xlsx")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: scores.xlsx: ends neither in .parquet nor in .csv or \
.csv.gz, which say what to write; use such a name
    """
    check_writable(path, overwrite=overwrite)
    if not str(path).lower().endswith(_ENDS):
        raise InputError(
            f"{path}: ends neither in .parquet nor in .csv or .csv.gz, which say what to write; "
            "use such a name"
        )


def check_kept(keep: Sequence[str], own: Sequence[str]) -> None:
    """Refuse to copy a column twice, or over a column of the scores: `row`, or one of `own`.

    >>> check_kept(["user", "user"], ["probability"])
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: `keep`: 'user' is given twice; remove it
    """
    for name in keep:
        if name in ("row", *own) or list(keep).count(name) > 1:
            twice = list(keep).count(name) > 1 and name not in ("row", *own)
            what = "is given twice" if twice else "is a column of the scores itself"
            raise InputError(f"`keep`: {name!r} {what}; remove it")


@contextmanager
def table_file(path: Path) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that appends a table to the file, which is whole or not there.

    Raises:
        InputError: if a column has lists and the file is CSV.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    writers: list[pq.ParquetWriter | pa.csv.CSVWriter] = []
    name = path.name.lower()
    with atomic_write(path) as temporary:
        sink: pa.NativeFile | Path = temporary
        if name.endswith(".gz"):
            sink = pa.CompressedOutputStream(str(temporary), "gzip")

        def write(table: pa.Table) -> None:
            if not writers:
                if name.endswith(".parquet"):
                    writers.append(pq.ParquetWriter(temporary, table.schema))
                else:
                    _refuse_lists(table.schema, path)
                    writers.append(pa.csv.CSVWriter(sink, table.schema))
            writers[0].write_table(table)

        try:
            yield write
        finally:
            for each in writers:
                each.close()
            if sink is not temporary:
                sink.close()


def _refuse_lists(schema: pa.Schema, path: Path) -> None:
    import pyarrow.types as types

    for column in schema:
        if types.is_nested(column.type):
            raise InputError(
                f"{path}: column {column.name!r} is {column.type}, which CSV cannot hold; write "
                ".parquet"
            )


PREDICTION_BATCH_SIZE = 16384


class Predictor:
    """Predicts click probabilities, and numbers of regressions, on the device, batch by batch.

    Several workers take turns with the batches, and all of them get all probabilities.
    """

    def __init__(self, model: CTRModel, data: Data) -> None:
        self._data, self._score = data, logits_function(model, data)
        self._targets = model.blocks[0].columns.targets

    @property
    def on_device(self) -> bool:
        """Whether `metrics` is the way: on a GPU, with one worker and one label of 0 and 1.

        On a CPU, NumPy sorts faster than TensorFlow.
        """
        gpus = compat.tensorflow().config.list_logical_devices("GPU")
        return bool(gpus) and workers.current() is None and only_clicks(self._targets)

    def metrics(self) -> DeviceMetrics:
        """Return the metrics of all rows, computed on the device; only sums go to the host.

        Raises:
            InputError: if all weights are 0.
        """
        return self._metrics(self._data.labels(), self._logits()[:, 0], self._data.weights())

    @cached_property
    def _metrics(self) -> Function:
        return metrics_on_device()

    def predict(self) -> npt.NDArray[np.float64]:
        """Return the prediction for every row, in file order, [n, T]."""
        own = self._logits().numpy().astype(np.float64)
        parts = arrays_of_all(workers.current(), own)
        every = [part.reshape(-1, len(self._targets)) for part in parts]
        return values_of(_in_file_order(every, self._data.rows), self._targets)

    def _logits(self) -> Tensor:
        """Return the logits of this worker's batches on the device, float32 [m, T]."""
        tf = compat.tensorflow()
        parts = [self._score(batch) for batch in self._own_batches(workers.current())]
        return tf.concat(parts, axis=0) if parts else tf.zeros((0, len(self._targets)))

    def _own_batches(self, group: workers.Workers | None) -> Iterator[PackedBatch]:
        """Yield the batches of this worker; each worker gets as many, the last perhaps empty.

        Sharded tables need all workers to score at the same time.
        """
        batches = self._data.batches_in_file_order(PREDICTION_BATCH_SIZE)
        if group is None:
            total = -(-self._data.rows // PREDICTION_BATCH_SIZE)
            yield from progress(total, iterable=batches, desc="score", unit="batch")
            return
        batch, count = None, 0
        for count, batch in enumerate(batches, 1):
            if (count - 1) % group.size == group.rank:
                yield batch
        if 0 < count % group.size <= group.rank:
            yield self._data.part(batch, 0, 0)


def _in_file_order(parts: Sequence[Array], rows: int) -> npt.NDArray[np.float64]:
    """Put together what workers have scored batch by batch, in turn.

    >>> PREDICTION_BATCH_SIZE
    16384
    >>> _in_file_order([np.zeros(20_000), np.ones(16384)], 36_384)[[0, 16384, 32768]].tolist()
    [0.0, 1.0, 0.0]
    """
    result = np.empty((rows, *parts[0].shape[1:]), np.float64)
    for number, first in enumerate(range(0, rows, PREDICTION_BATCH_SIZE)):
        size = min(PREDICTION_BATCH_SIZE, rows - first)
        begin = number // len(parts) * PREDICTION_BATCH_SIZE
        result[first : first + size] = parts[number % len(parts)][begin : begin + size]
    return result


def logits_function(model: CTRModel, data: Data) -> Function:
    """Return a `tf.function` that maps a batch of `data` to its logits [b, T]."""
    from cowclip_merlin import models

    tf = compat.tensorflow()

    @tf.function(input_signature=[data.signature], autograph=False)
    def score(batch: PackedBatch) -> Tensor:
        return models.logits(model, data.unpack(batch), training=False)

    return score


def values_of(
    logits: npt.NDArray[np.float64], targets: Sequence[Target]
) -> npt.NDArray[np.float64]:
    """Return probabilities, and the numbers of regressions, from logits [n, T].

    They are computed in float64, so that large logits do not tie at 1.
    """
    return np.where([regression for _, regression in targets], logits, sigmoid(logits))


def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the probabilities of logits, without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))
