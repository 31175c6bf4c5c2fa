"""What a log is like before anything is known of its columns: first rows, and how values differ."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.checks import near
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array
from cowclip_merlin.workflows.parallel import Threads
from cowclip_merlin.workflows.raw.file_formats import JSON_LINES, PARQUET, format_of
from cowclip_merlin.workflows.raw.json_rows import first_objects
from cowclip_merlin.workflows.raw.log_format import TABLE, LogFormat, separator_of
from cowclip_merlin.workflows.raw.readers import (
    SEPARATORS,
    open_parquet,
    read_header,
    read_rows,
    read_text_rows,
)
from cowclip_merlin.workflows.raw.text_lines import read_blocks

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 50_000
"""Rows to read."""
_BYTES = 1 << 25  # of text to read for these rows at most
HASHES = 1 << 22
"""Hashes of a column to keep; of more values only a share is counted."""
_BLOCK = 1 << 23


def separator_with(file: FilePath, label: str) -> str | None:
    """Return the separator with which the header names the label; None: that of the file's name."""
    with closing(read_blocks(file, 1 << 16)) as blocks:
        line = next(blocks).text.partition(b"\n")[0].decode("utf-8", "replace").rstrip("\r")
    for separator in dict.fromkeys((separator_of(file), *SEPARATORS)):
        log_format = LogFormat(kind=TABLE, label=label, categorical=(), separator=separator)
        cells = log_format.cells(line)
        if label in cells and len(cells) > 1:
            return separator
    return None


def first_rows(file: FilePath, log_format: LogFormat) -> tuple[pa.Table, list[str]]:
    """Return the first rows with all columns, as they are; and the names that occur twice.

    Raises:
        InputError: if there is no label.
    """
    import pyarrow as pa

    kind = format_of(file)
    if kind == PARQUET:
        parquet = open_parquet(file)
        every = parquet.schema_arrow.names
        names, twice = _once(every)
        batch = next(parquet.iter_batches(batch_size=ROWS, columns=names), None)
        table = parquet.schema_arrow.empty_table().select(names)
        table = table if batch is None else pa.Table.from_batches([batch])
    elif kind == JSON_LINES:
        rows = first_objects(file, ROWS, _BYTES)
        names, twice = list(dict.fromkeys(name for row in rows for name in row)), []
        table = pa.table({name: _json_column([row.get(name) for row in rows]) for name in names})
    else:
        return _first_text_rows(file, log_format)
    if log_format.label not in table.column_names:
        some = ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
        hint = near(log_format.label, names) or "; check the names"
        raise InputError(f"{file}: no column {log_format.label!r}, but {some}{hint}")
    return table, twice


def _first_text_rows(file: FilePath, log_format: LogFormat) -> tuple[pa.Table, list[str]]:
    import pyarrow as pa

    with closing(read_blocks(file, 1 << 16)) as blocks:
        line = next(blocks).text.partition(b"\n")[0].removesuffix(b"\r")
    names, twice = _once(read_header(line, log_format, file))
    names = [name for name in names if name]  # pandas writes its index without a name
    with closing(read_text_rows(file, log_format.only(*names), _BYTES)) as parts:
        rows = next(parts, None)
    if rows is None:
        return pa.table({name: pa.array([], pa.string()) for name in names}), twice
    if rows.bad and not rows.table.num_rows:
        first = rows.bad[0]
        raise InputError(
            f"{file}:{first.line}: {first.reason}, and no row is right; repair the file"
        )
    return rows.table[:ROWS], twice


def _once(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names that occur once, and the others."""
    once = [name for name in names if list(names).count(name) == 1]
    return once, [name for name in dict.fromkeys(names) if name not in once]


def _json_column(values: Sequence[Any]) -> pa.Array:
    """Return values of JSON as Arrow infers them; those of several types as text."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])


def count_values(
    files: Sequence[FilePath], names: Sequence[str], log_format: LogFormat
) -> dict[str, tuple[int, int]]:
    """Return how many values of each column differ in all files, and how many there are.

    More than `HASHES` are counted to three digits.
    """
    from pandas.util import hash_array

    found = {name: _Counter() for name in names}
    only = log_format.only(*names)
    with Threads(1) as threads:
        for file in files:
            for rows in read_rows(file, only, _BLOCK, threads):
                for name, counter in found.items():
                    known = rows.table[name].drop_null().to_numpy()
                    counter.add(hash_array(known, categorize=False))
    return {name: (each.values, each.rows) for name, each in found.items()}


@dataclass
class _Counter:
    """Counts different hashes; of many, those that begin with `zeros` zero bits.

    Attributes:
        rows: hashes so far.
        zeros: bits.
        known: different hashes that begin so, sorted, uint64.
        new: further ones, unsorted.
    """

    rows: int = 0
    zeros: int = 0
    known: Array = field(default_factory=lambda: np.empty(0, np.uint64))
    new: list[Array] = field(default_factory=list)

    def add(self, hashes: Array) -> None:
        self.rows += len(hashes)
        self.new.append(self._counted(hashes))
        if sum(map(len, self.new)) > HASHES:
            self._sort()

    @property
    def values(self) -> int:
        """How many hashes differ."""
        self._sort()
        found = len(self.known) << self.zeros
        return int(float(f"{found:.3g}")) if self.zeros else found

    def _sort(self) -> None:
        self.known, self.new = np.unique(np.concatenate([self.known, *self.new])), []
        while len(self.known) > HASHES:
            self.zeros += 1
            self.known = self._counted(self.known)

    def _counted(self, hashes: Array) -> Array:
        return hashes[hashes >> np.uint64(64 - self.zeros) == 0] if self.zeros else hashes
