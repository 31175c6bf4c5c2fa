"""Fit and transform staged files on GPUs with cuDF, as NVTabular's graph does on a CPU.

NVTabular 23.8 cannot count text with cuDF from 24.8 on, and reads only with a Dask-cuDF that later
versions of cuDF do not have. So each task here reads one file and calls public functions of cuDF.
Frames stay within a task: Dask passes only counts, ranges and numbers of rows between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.kernels.cuda.nvrtc import load_nvrtc
from cowclip_merlin.workflows.nvtabular_graph import (
    Recipe,
    Statistics,
    load_workflow,
    operators,
    read_statistics,
)
from cowclip_merlin.workflows.prepared.hugectr import output_types, write_lists
from cowclip_merlin.workflows.prepared.unknown_values import LOOKED_AT
from cowclip_merlin.workflows.raw.file_formats import read_staged
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.vocabulary import count_values, write_vocabularies

if TYPE_CHECKING:
    import cudf
    import nvtabular as nvt
    import pyarrow as pa

    from cowclip_merlin.workflows.categorify import FastCategorify
    from cowclip_merlin.workflows.encoding.encoder import Staged

Ranges = dict[str, tuple[float, float]]
"""Continuous column -> smallest and largest value."""


def fit(files: Sequence[Path], log_format: LogFormat, recipe: Recipe, folder: Path) -> nvt.Workflow:
    """Learn ids and ranges from staged files, and return a fitted `nvtabular.Workflow`.

    Args:
        files: staged files, with categories as text.
        log_format: the columns.
        recipe: how to transform them.
        folder: receives `categories/`, with the files that the fit on a CPU writes.
    """
    import dask
    from dask import delayed

    categories = folder / "categories"
    categories.mkdir()
    measured = [delayed(_measure, nout=2)(str(file), log_format, recipe.log) for file in files]
    counts, ranges = zip(*measured)
    written = write_vocabularies(counts, list(log_format.tables), categories, recipe.freq_threshold)
    _, ranges = dask.compute(written, ranges)
    statistics = Statistics(
        cardinalities={},
        minimum={c: min(part[c][0] for part in ranges) for c in log_format.continuous},
        maximum={c: max(part[c][1] for part in ranges) for c in log_format.continuous},
    )
    return load_workflow(log_format, recipe, statistics, folder)


def _measure(file: str, log_format: LogFormat, log: bool) -> tuple[dict[str, pa.Table], Ranges]:
    """Return the counts of the values, and the ranges of the numbers, of one file."""
    import cudf

    load_nvrtc()  # CuPy compiles the logarithm
    frame = cudf.read_parquet(file)
    numbers = _filled(frame, log_format.continuous, log)
    ranges = {name: (float(x.min()), float(x.max())) for name, x in numbers.items()}
    return count_values(frame, log_format.tables), ranges


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


def write_split(
    workflow: nvt.Workflow,
    statistics: Statistics,
    files: Sequence[Path],
    out: Path,
    log_format: LogFormat,
    recipe: Recipe,
    *,
    hugectr: bool,
) -> None:
    """Transform staged files into `out/part-*.parquet`, with rows in the order of the input.

    The columns, types and lists for HugeCTR are those of `nvtabular_graph.write_split`.
    """
    import dask
    from dask import delayed

    categorify = operators(workflow)["FastCategorify"]
    names = [f"part-{index:05d}.parquet" for index in range(len(files))]
    rows = dask.compute(
        *(
            delayed(_write_part)(
                str(file), str(out / name), categorify, statistics, log_format, recipe.log, hugectr
            )
            for file, name in zip(files, names)
        )
    )
    if hugectr:
        write_lists(out, names, rows, log_format)


def _write_part(
    file: str,
    out: str,
    categorify: FastCategorify,
    statistics: Statistics,
    log_format: LogFormat,
    log: bool,
    hugectr: bool,
) -> int:
    """Transform one staged file and return its number of rows."""
    import cudf
    from nvtabular import ColumnSelector

    load_nvrtc()  # CuPy compiles the logarithm
    frame = cudf.read_parquet(file)
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
    cudf.DataFrame(columns).to_parquet(out, compression=None, index=False)
    return len(frame)


class GpuRows:
    """What `prepare` does with staged rows, as `Encoder` does on a CPU.

    Args:
        log_format: columns of the log.
        recipe: how to transform them.
    """

    def __init__(self, log_format: LogFormat, recipe: Recipe) -> None:
        self._format, self._recipe = log_format, recipe
        self._unknown: tuple[Sequence[Path], Path] = (), Path()

    def fit(self, work: Path, staged: Staged, threshold: int) -> Statistics:
        """Write the vocabularies and return the statistics."""
        recipe = replace(self._recipe, freq_threshold=threshold)
        files = [file for split in recipe.fitted_splits for file in staged.get(split, ())]
        return read_statistics(fit(files, self._format, recipe, work / "data"), self._format)

    def write(
        self,
        work: Path,
        staged: Staged,
        statistics: Statistics,
        *,
        hugectr: bool,
    ) -> None:
        """Write the rows of all splits."""
        data, columns = work / "data", (self._format, self._recipe)
        workflow = load_workflow(*columns, statistics, data)
        for name, files in staged.items():
            if files:
                write_split(workflow, statistics, files, data / name, *columns, hugectr=hugectr)
        self._unknown = staged["test"], data / "categories"

    def frequent_unknown(self, column: str) -> list[str]:
        """Return the most frequent values that the vocabulary lacks, of one staged file."""
        files, categories = self._unknown
        return frequent_unknown(
            files, column, categories / f"unique.{self._format.table_of(column)}.parquet"
        )


def frequent_unknown(files: Sequence[Path], column: str, vocabulary: Path) -> list[str]:
    """Return the most frequent values that a vocabulary lacks, of one staged file of text."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    known = pq.read_table(vocabulary).column(0).cast(pa.large_string())
    for file in files:
        text = read_staged(file)[column].drop_null().cast(pa.large_string())
        counts = text.filter(pc.invert(pc.is_in(text, known))).value_counts().to_pylist()
        if counts:
            counts.sort(key=lambda each: (-each["counts"], each["values"]))
            return [each["values"] for each in counts[:LOOKED_AT]]
    return []
