"""Read a raw file of any kind in blocks of checked rows, as `prepare` and `score` use them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.parallel import Threads
from cowclip_merlin.workflows.raw.file_formats import JSON_LINES, PARQUET, format_of
from cowclip_merlin.workflows.raw.json_rows import first_values, read_json_rows
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parquet_rows import check_columns, open_parquet, read_parquet_rows
from cowclip_merlin.workflows.raw.parsed_rows import ParsedRows
from cowclip_merlin.workflows.raw.text_rows import read_text_rows
from cowclip_merlin.workflows.raw.values.multi_values import vector_length

if TYPE_CHECKING:
    import pyarrow as pa


def check_input_files(files: Sequence[FilePath]) -> None:
    """Check before long work that input files exist."""
    for file in files:
        if file.is_file():
            continue
        if file.is_dir():
            raise InputError(f"{file}: is a folder; give the files in it, such as {file}/*.parquet")
        raise InputError(f"{file}: no such file; check the path")


def read_rows(
    file: FilePath,
    log_format: LogFormat,
    block_bytes: int,
    threads: Threads,
    *,
    coded: bool = False,
    keep: Sequence[str] = (),
    digest: hashlib._Hash | None = None,
) -> Iterator[ParsedRows]:
    """Read and check a file of any kind in blocks."""
    kind = format_of(file)
    if kind == JSON_LINES:
        return read_json_rows(file, log_format, block_bytes, keep=keep, digest=digest)
    if kind == PARQUET:
        of_vectors = 16 * sum(log_format.vectors.values())  # bytes, with their copies
        rows = max(1, block_bytes // (256 + of_vectors))
        return read_parquet_rows(file, log_format, rows, keep=keep)
    how = {"coded": coded, "digest": digest}
    return read_text_rows(file, log_format.of_file(file), block_bytes, threads, **how)


_ROWS = 1000
_BLOCK_BYTES = 1 << 22


def with_vector_lengths(log_format: LogFormat, files: Sequence[FilePath]) -> LogFormat:
    """Return the columns of a log with the length of each vector, that of the first row."""
    if not log_format.vectors:
        return log_format
    rows, separator = _first_rows(files[0], log_format), log_format.vector_separator
    lengths = {}
    for name, values in rows.items():
        found = (vector_length(value, separator) for value in values)
        lengths[name] = next((length for length in found if length), 0)
        if not lengths[name]:
            raise InputError(
                f"{files[0]}: column {name!r} has no vector in its first {len(values)} rows; give "
                f"lists of numbers, or text with {separator!r} between numbers "
                "(`vector_separator`)"
            )
    return replace(log_format, vectors=lengths)


def _first_rows(file: FilePath, log_format: LogFormat) -> dict[str, list[object]]:
    """Return the values of the first rows of all columns of vectors."""
    names = list(log_format.vectors)
    if format_of(file) == JSON_LINES:
        return first_values(file, names, _ROWS)
    if format_of(file) == PARQUET:
        parquet = open_parquet(file)
        check_columns(parquet.schema_arrow.names, names, file)
        batch = next(parquet.iter_batches(batch_size=_ROWS, columns=names), None)
        return {name: [] for name in names} if batch is None else batch.to_pydict()
    others = {"continuous": (), "multi": {}, "vectors": {}}
    as_text = replace(log_format.of_file(file).without_label(), categorical=tuple(names), **others)
    parsed = next(read_text_rows(file, as_text, _BLOCK_BYTES), None)
    return {name: [] for name in names} if parsed is None else parsed.table[:_ROWS].to_pydict()


def staged_columns(
    table: pa.Table, log_format: LogFormat, whole_floats: dict[str, str], *, coded: bool
) -> pa.Table:
    """Return the columns with the types to stage; with `coded`, categories have a dictionary.

    Texts such as "47.0" become "47", unless the log keeps the text of the column. `whole_floats`
    gets the first one of each such column.

    Numbers become float64, as pandas would do with Arrow's nullable integers. Integers above 2**53
    lose their last digits. The weight becomes float32; so do other labels than one of 0 and 1.
    Vectors stay as they are.
    """
    import pyarrow as pa

    table = table.unify_dictionaries().combine_chunks()
    return pa.table(
        {
            each.name: each.staged(table[each.name], coded=coded, whole=whole_floats)
            for each in log_format.roles
        }
    )
