"""Find how long the vectors of a log are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.raw.file_formats import JSON_LINES, PARQUET, format_of
from cowclip_merlin.workflows.raw.json_rows import first_values
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parquet_rows import check_columns, open_parquet
from cowclip_merlin.workflows.raw.text_rows import read_text_rows
from cowclip_merlin.workflows.raw.values.multi_values import vector_length

_ROWS = 1000
_BLOCK_BYTES = 1 << 22


def with_vector_lengths(log_format: LogFormat, files: Sequence[FilePath]) -> LogFormat:
    """Return the columns of a log with the length of each vector, that of the first row.

    Args:
        log_format: columns of the log; the lengths of its vectors are not known.
        files: of the log; only the first is read.

    Raises:
        InputError: if the first rows of a column have no vector, or the file is damaged or has
            other columns.
    """
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
