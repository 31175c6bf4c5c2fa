"""Encode the rows of a log while it is read: texts become numbers, which are counted, then ids."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.system.checksums import write_parquet
from cowclip_merlin.system.console import progress
from cowclip_merlin.types import Array, ArrowColumn
from cowclip_merlin.workflows.nvtabular_graph import Recipe, Statistics, filled
from cowclip_merlin.workflows.parallel import Threads, cpu_threads
from cowclip_merlin.workflows.prepared.changes import LOOKED_AT
from cowclip_merlin.workflows.prepared.counts import FIRST_VALUE, SPECIAL
from cowclip_merlin.workflows.prepared.hugectr import output_types
from cowclip_merlin.workflows.raw.file_formats import read_staged
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.text_numbers import TextNumbers

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.workflows.raw.columns import Ids

_MISSING, _UNKNOWN = SPECIAL["null"], SPECIAL["oov"]


class Encoder:
    """Replaces the texts of blocks by codes, and counts those of the rows to fit on.

    A code is 1 for a missing value, and from 3 on it tells the place of a value in the order in
    which values came; `ids` has the id of each. Without rows to fit on, codes are the ids of a
    known vocabulary, and 2 is a value that it lacks. Threads may encode blocks at the same time.

    Args:
        log_format: columns of the log.
        recipe: how to transform them.
        known: table -> values of a known vocabulary; None learns one from the rows.

    Attributes:
        learns: whether it learns a vocabulary; if not, codes are ids.
        ranges: continuous column -> smallest and largest number of the rows to fit on.
    """

    def __init__(
        self,
        log_format: LogFormat,
        recipe: Recipe,
        known: Mapping[str, pa.ChunkedArray] | None = None,
    ) -> None:
        self._format, self._log = log_format, recipe.log
        self._fitted = recipe.fitted_splits if known is None else ()
        self._texts = {name: TextNumbers() for name in log_format.tables}
        self._counts = {name: np.zeros(FIRST_VALUE, np.int64) for name in log_format.tables}
        self.learns = known is None
        for name, values in (known or {}).items():
            self._texts[name].add(values)
        self._unknown: dict[str, tuple[int, list[str]]] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self._lock = Lock()

    def encode(
        self, table: pa.Table, masks: Mapping[str, npt.NDArray[np.bool_]], block: int
    ) -> pa.Table:
        """Return the columns with codes instead of texts, and without missing numbers."""
        import pyarrow as pa

        fitted = [masks[split] for split in self._fitted if split in masks]
        rows = np.logical_or.reduce(fitted) if fitted else np.zeros(len(table), bool)
        columns = {
            each.name: each.encoded(table[each.name].chunk(0), self, rows, block)
            for each in self._format.roles
        }
        return pa.table(columns)

    def numbers(self, name: str, values: pa.Array, rows: Array) -> Array:
        """Return the numbers of a column before they are scaled; note the range of `rows`."""
        numbers = filled(values, log=self._log)
        fitted = numbers[rows]
        if len(fitted):
            low, high = float(fitted.min()), float(fitted.max())
            with self._lock:
                before = self.ranges.get(name, (low, high))
                self.ranges[name] = min(low, before[0]), max(high, before[1])
        return numbers

    def codes(self, column: Ids, values: pa.DictionaryArray, rows: Array, block: int) -> Array:
        """Return the codes of texts, int32 [n]; count those of `rows`, bool [n]."""
        import pyarrow.compute as pc

        texts, table = values.dictionary, column.table
        index = np.asarray(pc.fill_null(values.indices, len(texts)))  # the last one is missing
        find = self._texts[table].add if self.learns else self._texts[table].find
        codes = np.append(find(texts), np.int32(_MISSING - FIRST_VALUE)) + np.int32(FIRST_VALUE)
        if self.learns:
            counts = np.bincount(index[rows], minlength=len(codes))
            with self._lock:
                known = self._counts[table]
                if (most := int(codes.max()) + 1) > len(known):
                    self._counts[table] = np.zeros(max(most, len(known) * 3 // 2), np.int64)
                    self._counts[table][: len(known)] = known
                self._counts[table][codes] += counts
        elif (codes == _UNKNOWN).any():
            self._list_unknown(column.name, texts, codes, index, block)
        return codes[index]

    def _list_unknown(
        self, name: str, texts: pa.StringArray, codes: Array, index: Array, block: int
    ) -> None:
        """Keep the most frequent unknown values of the first block that has some."""
        with self._lock:
            if name in self._unknown and self._unknown[name][0] < block:
                return
        counts = np.bincount(index, minlength=len(codes))[:-1]
        places = np.flatnonzero(codes[:-1] == _UNKNOWN)
        found = zip((-counts[places]).tolist(), texts.take(places).to_pylist())
        listed = [text for count, text in sorted(found)[:LOOKED_AT] if count]
        with self._lock:
            if listed and (name not in self._unknown or block < self._unknown[name][0]):
                self._unknown[name] = block, listed

    def frequent_unknown(self, name: str) -> list[str]:
        """Return the most frequent values of a column that are out of vocabulary, of one block."""
        return self._unknown.get(name, (0, []))[1]

    def counts(self, table: str) -> pa.Table:
        """Return an Arrow table of value and count, with one null if a value was missing."""
        import pyarrow as pa

        values, counts = self._texts[table].values(), self._counts[table]
        seen = counts[FIRST_VALUE:][: len(values)]
        counted = np.zeros(1 + len(values), np.int64)
        counted[0], counted[1 : 1 + len(seen)] = counts[_MISSING], seen
        values = pa.chunked_array([pa.nulls(1, pa.string()), *values.chunks])
        return pa.table({"value": values, "count": counted}).filter(pa.array(counted > 0))

    def ids(self, table: str, values: pa.ChunkedArray) -> npt.NDArray[np.int32]:
        """Return the id of each code, where ids from 3 on are those of these values in order."""
        texts = self._texts[table]
        ids = np.full(FIRST_VALUE + len(texts), _UNKNOWN, np.int32)
        ids[list(SPECIAL.values())] = list(SPECIAL.values())
        places = texts.find(values)
        here = places >= 0  # `extend` keeps values that only the earlier log has
        ids[places[here] + FIRST_VALUE] = np.flatnonzero(here) + FIRST_VALUE
        return ids


class Part(NamedTuple):
    """What was written to a file of a prepared folder.

    Attributes:
        rows: how many.
        checksum: of the file.
        values: categorical column -> values that are not missing.
        unknown: categorical column -> those of them that are out of vocabulary.
        longest: column with several values per row -> the most that a row has.
    """

    rows: int
    checksum: str
    values: dict[str, int]
    unknown: dict[str, int]
    longest: dict[str, int]

    @classmethod
    def of(cls, columns: Mapping[str, ArrowColumn], log_format: LogFormat, checksum: str) -> Part:
        """Count the ids of rows."""
        import pyarrow.compute as pc

        values, unknown = {}, {}
        for name in log_format.categorical:
            ids = columns[name]
            ids = np.asarray(pc.list_flatten(ids) if name in log_format.multi else ids)
            values[name] = int(np.count_nonzero(ids != _MISSING))
            unknown[name] = int(np.count_nonzero(ids == _UNKNOWN))
        sizes = {name: pc.list_value_length(columns[name]) for name in log_format.multi}
        longest = {name: pc.max(size).as_py() or 0 for name, size in sizes.items()}
        return cls(len(columns[log_format.label]), checksum, values, unknown, longest)


_ROW_GROUP_BYTES = 128_000_000  # as Merlin writes


def write_parts(
    files: Mapping[Path, Path],
    log_format: LogFormat,
    statistics: Statistics,
    ids: Path | None,
    *,
    hugectr: bool,
    on_cluster: bool,
) -> dict[Path, Part]:
    """Write staged files with ids and scaled numbers, on threads or Dask's configured scheduler."""
    tasks = [(*pair, log_format, statistics, ids, hugectr) for pair in files.items()]
    if on_cluster:
        import dask

        parts = dask.compute(*(dask.delayed(_write_part)(*task) for task in tasks))
        return dict(zip(files, parts, strict=True))
    with Threads(cpu_threads()) as threads:
        parts = threads.in_order(lambda task: _write_part(*task), tasks)
        parts = progress(len(tasks), iterable=parts, desc="write", unit="part")
        return dict(zip(files, parts, strict=True))


def _write_part(
    out: Path,
    file: Path,
    log_format: LogFormat,
    statistics: Statistics,
    ids: Path | None,
    hugectr: bool,
) -> Part:
    import pyarrow as pa

    staged = read_staged(file)
    columns = {
        each.name: each.written(staged[each.name], ids, statistics)
        for each in sorted(log_format.roles, key=lambda each: each.place)
    }
    if hugectr:
        kinds = {name: pa.type_for_alias(kind) for name, kind in output_types(log_format).items()}
        kinds |= dict.fromkeys(log_format.multi, pa.list_(pa.int64()))
        columns = {n: x.cast(kinds[n]) if n in kinds else x for n, x in columns.items()}
    rows = pa.table(columns)
    about = pa.Table.from_pandas(rows.slice(0, 1).to_pandas(), preserve_index=False).schema.metadata
    rows = rows.replace_schema_metadata(about)  # as Merlin writes, for pandas
    size = math.ceil(_ROW_GROUP_BYTES * rows.num_rows / rows.nbytes)
    checksum = write_parquet(rows, out, compression="none", row_group_size=size)
    return Part.of(columns, log_format, checksum)
