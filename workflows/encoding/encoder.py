"""Encode the rows of a log while it is read: texts become numbers, which are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.types import Array, ArrowColumn
from cowclip_merlin.workflows.encoding.value_counts import filled
from cowclip_merlin.workflows.encoding.write_split import write_split
from cowclip_merlin.workflows.nvtabular_graph import Recipe, Statistics
from cowclip_merlin.workflows.parallel import Threads, cpu_threads
from cowclip_merlin.workflows.prepared.counts import FIRST_VALUE, SPECIAL, cardinalities
from cowclip_merlin.workflows.prepared.unknown_values import LOOKED_AT
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.values.value_text import in_chunks

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.workflows.raw.columns import Ids

_FIRST_SLOTS = 1 << 10

Staged = Mapping[str, Sequence[Path]]
"""Split -> staged files, in order."""


class TextTable(NamedTuple):
    """The texts in the order of their numbers, and the hash table.

    Attributes:
        slots: the hash table, uint64 [a power of two], with at least one empty slot.
        starts: where each text starts in `text`, and where the last one ends, int64 [capacity + 1].
        text: UTF-8, uint8 [bytes].
    """

    slots: Array
    starts: Array
    text: Array


class TextNumbers:
    """Distinct texts, numbered from 0 in the order in which they came.

    It needs some 30 bytes for each text besides its UTF-8, and makes no Python string. Threads may
    use it at the same time.

    >>> import pyarrow as pa
    >>> texts = TextNumbers()
    >>> texts.add(pa.array(["b", "a"])).tolist(), texts.find(pa.array(["c", "a"])).tolist()
    ([0, 1], [-1, 1])
    >>> texts.values().to_pylist()
    ['b', 'a']
    """

    def __init__(self) -> None:
        self._table = TextTable(
            slots=np.zeros(_FIRST_SLOTS, np.uint64),
            starts=np.zeros(1, np.int64),
            text=np.empty(0, np.uint8),
        )
        self._count = 0
        self._lock = Lock()

    def __len__(self) -> int:
        """Return the number of texts."""
        return self._count

    def add(self, values: ArrowColumn) -> npt.NDArray[np.int32]:
        """Return the number of each text, int32 [m]; new texts get the next numbers.

        Args:
            values: Arrow array or chunked array of `string` without nulls, [m].
        """
        return self._numbers_of_chunks(values, add=True)

    def find(self, values: ArrowColumn) -> npt.NDArray[np.int32]:
        """Return the number of each text, int32 [m]; -1 for a text that never came.

        Args:
            values: Arrow array of `string` without nulls, [m].
        """
        return self._numbers_of_chunks(values, add=False)

    def values(self) -> pa.ChunkedArray:
        """Return the texts in the order of their numbers, in chunks of `string`."""
        import pyarrow as pa

        with self._lock:
            starts = self._table.starts[: self._count + 1].copy()
            text = self._table.text[: starts[-1]].copy()
        buffers = [None, pa.py_buffer(starts), pa.py_buffer(text)]
        found = pa.Array.from_buffers(pa.large_string(), len(starts) - 1, buffers)
        return in_chunks(found)

    def _numbers_of_chunks(self, values: ArrowColumn, *, add: bool) -> npt.NDArray[np.int32]:
        import pyarrow as pa

        if not isinstance(values, pa.ChunkedArray):
            return self._numbers(values, add=add)
        found = [self._numbers(chunk, add=add) for chunk in values.chunks]
        return np.concatenate([np.empty(0, np.int32), *found])

    def _numbers(self, values: pa.StringArray, *, add: bool) -> npt.NDArray[np.int32]:
        # Here, so that numba is imported on a thread while others read.
        from cowclip_merlin.kernels.loops.texts import hash_texts, number_texts

        tags, numbers = np.empty(len(values), np.uint64), np.empty(len(values), np.int32)
        if not len(values):
            return numbers
        starts, text = _buffers(values)
        hash_texts(starts, text, tags)
        with self._lock:
            if add:
                self._reserve(len(values), int(starts[-1]) - int(starts[0]))
            self._count = number_texts(*self._table, self._count, starts, text, tags, numbers, add)
        return numbers

    def _reserve(self, texts: int, size: int) -> None:
        """Make room for more texts of this size in bytes; at most 5 of 8 slots are used."""
        from cowclip_merlin.kernels.loops.texts import copy_slots

        slots, starts, text = self._table
        most, wide = self._count + texts, len(slots)
        while 8 * most > 5 * wide:
            wide *= 2
        if wide > len(slots):
            wider = np.zeros(wide, np.uint64)
            copy_slots(slots, wider)
            slots = wider
        starts = _grown(starts, self._count + 1, most + 1)
        used = int(starts[self._count])
        self._table = TextTable(slots, starts, _grown(text, used, used + size))


def _grown(x: npt.NDArray, used: int, size: int) -> npt.NDArray:
    """Return an array of at least this size with the first `used` numbers of `x`."""
    if size <= len(x):
        return x
    larger = np.empty(max(size, len(x) * 3 // 2), x.dtype)  # Linux gives memory when it is written
    larger[:used] = x[:used]
    return larger


def _buffers(values: pa.StringArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the starts, int32 [m + 1], and the UTF-8 of an Arrow array, which share its memory."""
    _, starts, text = values.buffers()
    found = np.frombuffer(starts, np.int32)[values.offset :][: len(values) + 1]
    data = np.frombuffer(text, np.uint8) if text else np.empty(0, np.uint8)
    for each in (found, data):
        each.flags.writeable = False  # always, or the loops would be compiled twice
    return found, data


_MISSING, _UNKNOWN = SPECIAL["null"], SPECIAL["oov"]


class Encoder:
    """Replaces the texts of blocks by codes, and counts those of the rows to fit on.

    A code is 1 for a missing value, and from 3 on it tells the place of a value in the order in
    which values came. `write` replaces it by its id. Without rows to fit on, codes are
    the ids of a known vocabulary, and 2 is a value that it lacks. Threads may encode blocks at the
    same time.

    Args:
        log_format: columns of the log.
        recipe: how to transform them.
        known: folder of a known vocabulary; None learns one from the rows.
        on_cluster: as of `write_split`.

    Attributes:
        learns: whether it learns a vocabulary; if not, codes are ids.
        ranges: continuous column -> smallest and largest number of the rows to fit on.
    """

    def __init__(
        self,
        log_format: LogFormat,
        recipe: Recipe,
        known: Path | None = None,
        *,
        on_cluster: bool = False,
    ) -> None:
        self._format, self._log = log_format, recipe.log
        self._fitted = recipe.fitted_splits if known is None else ()
        self._texts = {name: TextNumbers() for name in log_format.tables}
        self._counts = {name: np.zeros(FIRST_VALUE, np.int64) for name in log_format.tables}
        self.learns, self._on_cluster = known is None, on_cluster
        if known is not None:
            for name, texts in self._texts.items():
                texts.add(read_values(known, name))
        self._unknown: dict[str, tuple[int, list[str]]] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self._lock = Lock()

    def encode(
        self, table: pa.Table, masks: Mapping[str, npt.NDArray[np.bool_]], block: int
    ) -> pa.Table:
        """Return the columns with codes instead of texts, and without missing numbers.

        Args:
            table: rows with the columns of `staged_columns`, one chunk each.
            masks: split -> its rows, bool [n].
            block: number of the block.
        """
        import pyarrow as pa

        fitted = [masks[split] for split in self._fitted if split in masks]
        rows = np.logical_or.reduce(fitted) if fitted else np.zeros(len(table), bool)
        columns = {
            each.name: each.encoded(_one_array(table[each.name]), self, rows, block)
            for each in self._format.roles
        }
        return pa.table(columns)

    def numbers(self, name: str, values: pa.Array, rows: Array) -> Array:
        """Return the numbers of a column before they are scaled; note the range of `rows`."""
        numbers = filled(values, log=self._log)
        self._add_range(name, numbers[rows])
        return numbers

    def codes(self, column: Ids, values: pa.DictionaryArray, rows: Array, block: int) -> Array:
        """Return the codes of texts, int32 [n]; count those of `rows`, bool [n]."""
        import pyarrow.compute as pc

        texts, table = values.dictionary, column.table
        index = np.asarray(pc.fill_null(values.indices, len(texts)))  # the last one is missing
        find = self._texts[table].add if self.learns else self._texts[table].find
        codes = np.append(find(texts), np.int32(_MISSING - FIRST_VALUE)) + np.int32(FIRST_VALUE)
        if self.learns:
            self._count(table, codes, np.bincount(index[rows], minlength=len(codes)))
        elif (codes == _UNKNOWN).any():
            self._list_unknown(column.name, texts, codes, index, block)
        return codes[index]

    def _count(self, table: str, codes: Array, counts: Array) -> None:
        """Add to the counts of distinct codes."""
        with self._lock:
            known = self._counts[table]
            if (most := int(codes.max()) + 1) > len(known):
                self._counts[table] = np.zeros(max(most, len(known) * 3 // 2), np.int64)
                self._counts[table][: len(known)] = known
            self._counts[table][codes] += counts

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

    def _add_range(self, name: str, numbers: Array) -> None:
        if not len(numbers):
            return
        low, high = float(numbers.min()), float(numbers.max())
        with self._lock:
            before = self.ranges.get(name, (low, high))
            self.ranges[name] = min(low, before[0]), max(high, before[1])

    def frequent_unknown(self, name: str) -> list[str]:
        """Return the most frequent values of a column that are out of vocabulary, of one block."""
        return self._unknown.get(name, (0, []))[1]

    def fit(self, work: Path, staged: Staged, threshold: int) -> Statistics:
        """Write the vocabularies to `work/data/categories/`, and return the statistics.

        Args:
            work: folder with the folder `data` to prepare.
            staged: the encoded rows, which are counted already.
            threshold: values seen less often get no id.
        """
        categories = work / "data" / "categories"
        categories.mkdir()
        with Threads(cpu_threads()) as threads:
            for name in self._format.tables:
                threads.start(self._write_vocabulary, name, categories, threshold)
            threads.finish()
        return Statistics(
            cardinalities=cardinalities(categories, self._format),
            minimum={name: self.ranges[name][0] for name in self._format.continuous},
            maximum={name: self.ranges[name][1] for name in self._format.continuous},
        )

    def _write_vocabulary(self, name: str, folder: Path, threshold: int) -> None:
        from cowclip_merlin.workflows.vocabulary import write_vocabulary

        write_vocabulary(self.counts(name), name, str(folder), threshold)

    def counts(self, table: str) -> pa.Table:
        """Return an Arrow table of value and count, with one null if a value was missing."""
        import pyarrow as pa

        values, counts = self._texts[table].values(), self._counts[table]
        seen = counts[FIRST_VALUE:][: len(values)]
        counted = np.zeros(1 + len(values), np.int64)
        counted[0], counted[1 : 1 + len(seen)] = counts[_MISSING], seen
        values = pa.chunked_array([pa.nulls(1, pa.string()), *values.chunks])
        return pa.table({"value": values, "count": counted}).filter(pa.array(counted > 0))

    def write(
        self,
        work: Path,
        staged: Staged,
        statistics: Statistics,
        *,
        hugectr: bool,
    ) -> None:
        """Write the rows with the ids of `work/data/categories/`.

        Args:
            work: as of `fit`; gets `ids/NAME.npy`, the id of each code of a vocabulary, int32.
            staged: the encoded rows.
            statistics: the ranges of the numbers.
            hugectr: as of `write_split`.
        """
        data, ids = work / "data", work / "ids" if self.learns else None
        if ids is not None:
            ids.mkdir()
            with Threads(cpu_threads()) as threads:
                for name in self._format.tables:
                    threads.start(self._save_ids, name, data / "categories", ids)
                threads.finish()
        how = {"ids": ids, "hugectr": hugectr, "on_cluster": self._on_cluster}
        for name, files in staged.items():
            if files:
                write_split(files, data / name, self._format, statistics, **how)

    def _save_ids(self, name: str, categories: Path, folder: Path) -> None:
        texts = self._texts[name]
        ids = np.full(FIRST_VALUE + len(texts), _UNKNOWN, np.int32)
        ids[list(SPECIAL.values())] = list(SPECIAL.values())
        places = texts.find(read_values(categories, name))
        here = places >= 0  # `extend` keeps values that only the earlier log has
        ids[places[here] + FIRST_VALUE] = np.flatnonzero(here) + FIRST_VALUE
        np.save(folder / f"{name}.npy", ids)


def read_values(categories: Path, name: str) -> pa.ChunkedArray:
    """Return the values of a vocabulary in the order of their ids."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = categories / f"unique.{name}.parquet"
    return pq.read_table(file, columns=[name])[name].cast(pa.string())


def _one_array(column: ArrowColumn) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
