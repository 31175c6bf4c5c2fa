"""Fit and transform staged files on GPUs with cuDF, as NVTabular's graph does on a CPU.

NVTabular 23.8 cannot count text with cuDF from 24.8 on, and reads only with a Dask-cuDF that later
versions of cuDF do not have. So each task here reads one file and calls public functions of cuDF.
Frames stay within a task: Dask passes only counts, ranges and numbers of rows between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.cuda.nvrtc import load_nvrtc
from cowclip_merlin.system.checksums import checksum
from cowclip_merlin.workflows.encoder import Part
from cowclip_merlin.workflows.nvtabular_graph import Recipe, Statistics, load_workflow, operators
from cowclip_merlin.workflows.prepared.changes import LOOKED_AT
from cowclip_merlin.workflows.prepared.counts import Vocabulary, add_counts
from cowclip_merlin.workflows.prepared.hugectr import output_types
from cowclip_merlin.workflows.raw.file_formats import read_staged
from cowclip_merlin.workflows.raw.log_format import LogFormat

if TYPE_CHECKING:
    import cudf
    import dask.dataframe as dd
    import pyarrow as pa
    from dask.delayed import Delayed

    from cowclip_merlin.workflows.categorify import FastCategorify

Counts = dict[str, "pa.Table"]
"""Vocabulary -> Arrow table of value and count."""
Ranges = dict[str, tuple[float, float]]
"""Continuous column -> smallest and largest value."""
_MERGED_AT_ONCE = 8
"""Partitions whose counts one task adds up."""


def check_columns(log_format: LogFormat) -> None:
    """Refuse columns that a GPU does not prepare."""
    multi, vectors = (
        f"{min(names, default='')!r}" for names in (log_format.multi, log_format.vectors)
    )
    labels = ", ".join(log_format.labels)
    found = {
        f"column {multi} has several values per row, which a GPU does not prepare": (
            log_format.multi
        ),
        f"column {vectors} has vectors, which a GPU does not prepare": log_format.vectors,
        f"labels {labels}: a GPU prepares one label of 0 and 1": log_format.float_labels,
    }
    for words, wrong in found.items():
        if wrong:
            raise InputError(f"{words}; use `device` cpu")


def fit_vocabularies(
    ddf: dd.DataFrame, names: Sequence[str], folder: Path, threshold: int
) -> Delayed:
    """Return a `dask.delayed` that counts all partitions, writes files and returns their paths."""
    from dask import delayed

    tables = {name: [name] for name in names}
    counts = _added([delayed(_count_values)(part, tables) for part in ddf.to_delayed()])
    write = delayed(_write_vocabulary)
    written = [(name, write(counts[name], name, folder, threshold)) for name in names]
    return delayed(dict)(written)


def _write_vocabulary(counts: pa.Table, name: str, folder: Path, threshold: int) -> str:
    Vocabulary.of(counts, threshold).write(name, folder)
    return f"{folder}/unique.{name}.parquet"


def _added(counts: Sequence[Delayed]) -> Delayed:
    """Return a `dask.delayed` that adds up what `_count_values` returns for each partition."""
    from dask import delayed

    def add(parts: list[Counts]) -> Counts:
        return {name: add_counts([part[name] for part in parts]) for name in parts[0]}

    while len(counts) > 1:
        groups = range(0, len(counts), _MERGED_AT_ONCE)
        counts = [delayed(add)(counts[i : i + _MERGED_AT_ONCE]) for i in groups]
    return counts[0]


def _count_values(frame: cudf.DataFrame, tables: Mapping[str, Sequence[str]]) -> Counts:
    """Count the values of a cuDF frame; missing ones are counted as one null."""
    return {
        name: add_counts([_counts_of(frame[column]) for column in columns])
        for name, columns in tables.items()
    }


def _counts_of(column: cudf.Series) -> pa.Table:
    import pyarrow as pa

    counts = column.rename("value").value_counts(dropna=False).reset_index()
    value, count = counts.to_arrow(preserve_index=False).columns
    if pa.types.is_null(value.type):
        value = value.cast(pa.string())
    return pa.table({"value": value, "count": count.cast(pa.int64())})


def _measure(file: Path, log_format: LogFormat, log: bool) -> tuple[Counts, Ranges]:
    """Return the counts of the values, and the ranges of the numbers, of one file."""
    import cudf

    load_nvrtc()  # CuPy compiles the logarithm
    frame = cudf.read_parquet(str(file))
    numbers = _filled(frame, log_format.continuous, log)
    ranges = {name: (float(x.min()), float(x.max())) for name, x in numbers.items()}
    return _count_values(frame, log_format.tables), ranges


def _filled(frame: cudf.DataFrame, names: Sequence[str], log: bool) -> dict[str, cudf.Series]:
    """Return the numbers before the scaling: missing ones are 0, float64 or float32 [n]."""
    numbers = {name: frame[name].fillna(0) for name in names}
    if log:
        return {c: np.log(x.clip(lower=0).astype("float32") + 1) for c, x in numbers.items()}
    return numbers


def _scaled(x: cudf.Series, low: float, high: float) -> cudf.Series:
    """Scale as NVTabular's NormalizeMinMax, float32 [n]; a column of zeros stays 0."""
    spread = high - low
    scaled = (x - low) / spread if spread > 0 else x / (x * 2)
    return scaled.astype("float32").fillna(0)


def _write_part(
    out: Path,
    file: Path,
    categorify: FastCategorify,
    statistics: Statistics,
    log_format: LogFormat,
    log: bool,
    hugectr: bool,
) -> Part:
    """Transform one staged file."""
    import cudf
    import pyarrow.parquet as pq
    from nvtabular import ColumnSelector

    load_nvrtc()  # CuPy compiles the logarithm
    frame = cudf.read_parquet(str(file))
    ids = categorify.transform(ColumnSelector(list(log_format.categorical)), frame)
    columns = {name: ids[name] for name in log_format.categorical}
    for name, x in _filled(frame, log_format.continuous, log).items():
        columns[name] = _scaled(x, statistics.minimum[name], statistics.maximum[name])
    for name in (log_format.label, log_format.weight):
        if name:
            columns[name] = frame[name]
    if hugectr:
        types = output_types(log_format)
        columns = {name: x.astype(types.get(name, x.dtype)) for name, x in columns.items()}
    cudf.DataFrame(columns).to_parquet(str(out), compression=None, index=False)
    return Part.of(
        pq.read_table(out, columns=[*log_format.categorical, log_format.label], partitioning=None),
        log_format,
        checksum(out),
    )


class GpuRows:
    """What `prepare` does with staged rows, as `Encoder` does on a CPU.

    Args:
        log_format: columns of the log.
        recipe: how to transform them.
        known: table -> values of a known vocabulary; None learns one from the rows.

    Attributes:
        ranges: continuous column -> smallest and largest number of the counted rows.
    """

    def __init__(
        self,
        log_format: LogFormat,
        recipe: Recipe,
        known: Mapping[str, pa.ChunkedArray] | None = None,
    ) -> None:
        self._format, self._recipe, self._known = log_format, recipe, known
        self._files: Mapping[str, Sequence[Path]] = {}
        self._counts: Counts = {}
        self.ranges: Ranges = {}

    def count(self, files: Mapping[str, Sequence[Path]]) -> None:
        """Count the values and measure the numbers of the splits to fit on.

        Args:
            files: split -> staged files, with categories as text.
        """
        import dask
        from dask import delayed

        self._files = files
        splits = self._recipe.fitted_splits if self._known is None else ()
        fitted = [file for split in splits for file in files.get(split, ())]
        if not fitted:
            return
        measure = delayed(_measure, nout=2)
        measured = [measure(file, self._format, self._recipe.log) for file in fitted]
        counts, ranges = zip(*measured)
        self._counts, ranges = dask.compute(_added(counts), ranges)
        for name in self._format.continuous:
            low, high = zip(*(part[name] for part in ranges))
            self.ranges[name] = min(low), max(high)

    def counts(self, table: str) -> pa.Table:
        """Return an Arrow table of value and count, with one null if a value was missing."""
        return self._counts[table]

    def write_parts(
        self, files: Mapping[Path, Path], statistics: Statistics, folder: Path, *, hugectr: bool
    ) -> dict[Path, Part]:
        """Write staged files with the ids of `folder/categories/`, as `encoder.write_parts`."""
        import dask
        from dask import delayed

        columns = (self._format, self._recipe)
        op = operators(load_workflow(*columns, statistics, folder))["FastCategorify"]
        how = (op, statistics, self._format, self._recipe.log, hugectr)
        parts = dask.compute(*(delayed(_write_part)(*pair, *how) for pair in files.items()))
        return dict(zip(files, parts, strict=True))

    def frequent_unknown(self, column: str) -> list[str]:
        """Return the most frequent values that the vocabulary lacks, of one file of test rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known = self._known[self._format.table_of(column)].cast(pa.large_string())
        for file in self._files["test"]:
            text = read_staged(file)[column].drop_null().cast(pa.large_string())
            counts = text.filter(pc.invert(pc.is_in(text, known))).value_counts().to_pylist()
            if counts:
                counts.sort(key=lambda each: (-each["counts"], each["values"]))
                return [each["values"] for each in counts[:LOOKED_AT]]
        return []
