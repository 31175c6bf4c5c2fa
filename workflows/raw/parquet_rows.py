"""Read the rows of a raw parquet log in batches, and check them."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import BadLine, ParsedRows
from cowclip_merlin.workflows.raw.values import labels
from cowclip_merlin.workflows.raw.values.multi_values import (
    lists_of_values,
    vector_damage,
    vectors_of_values,
)
from cowclip_merlin.workflows.raw.values.value_text import printed_text, text_of_values

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def count_rows(file: FilePath) -> int:
    """Return the number of rows from the file's metadata.

    Raises:
        InputError: if the file does not exist or is not parquet.
    """
    return open_parquet(file).metadata.num_rows


def read_parquet_rows(
    file: FilePath,
    log_format: LogFormat,
    rows: int,
    *,
    printed: Container[str] = (),
    keep: Sequence[str] = (),
) -> Iterator[ParsedRows]:
    """Read the file in blocks of at most `rows` rows.

    Args:
        file: the file to read.
        log_format: columns of the log.
        rows: maximum number of rows of a block.
        printed: categorical columns that need no unique text, which `printed_text` converts.
        keep: columns to return as they are in the file, as `ParsedRows.kept`.

    Raises:
        InputError: if the file is missing or damaged, or a column is missing, occurs twice or has
            a wrong type.
    """
    import pyarrow as pa

    parquet = open_parquet(file)
    names = list(dict.fromkeys((*log_format.columns, *keep)))
    check_columns(parquet.schema_arrow.names, names, file)
    start = 0
    for batch in _batches(parquet, file, rows, names):
        parsed = checked_batch(batch, log_format, file, start, printed)
        if keep:
            kept = batch.select(list(keep)).take(pa.array(parsed.positions))
            parsed = replace(parsed, kept=pa.Table.from_batches([kept]))
        yield parsed
        start += batch.num_rows


def check_columns(found: Sequence[str], names: Iterable[str], file: FilePath) -> None:
    """Check that each name is that of one column.

    Raises:
        InputError: if it is that of none or of several.
    """
    for name in names:
        if found.count(name) == 0:
            raise InputError(f"{file}: no column {name!r}; check the kind and the names")
        if found.count(name) > 1:
            raise InputError(f"{file}: column {name!r} occurs twice; rename one")


def open_parquet(file: FilePath) -> pq.ParquetFile:
    """Open a file as a `pyarrow.parquet.ParquetFile`.

    Raises:
        InputError: if the file does not exist or is not parquet.
        OSError: if the file is not readable.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.is_file():
        raise InputError(f"{file}: no such file; check the path")
    file.open("rb").close()  # pyarrow's error would name no file
    try:
        return pq.ParquetFile(file if isinstance(file, Path) else file.open("rb"))
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{file}: not a parquet file ({reason}); check the file") from error


def _batches(
    parquet: pq.ParquetFile, file: FilePath, rows: int, names: list[str]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    batches = parquet.iter_batches(batch_size=rows, columns=names)
    while True:
        try:
            yield next(batches)
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{file}: damaged parquet ({reason}); download it again") from error


def checked_batch(
    batch: pa.RecordBatch,
    log_format: LogFormat,
    file: FilePath,
    start: int,
    printed: Container[str] = (),
) -> ParsedRows:
    """Return the rows of a batch; damaged ones, such as without a label, are reported."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.Table.from_batches([batch])
    for name in log_format.categorical:
        where = f"{file}: column {name!r}"
        if name in log_format.multi:
            column = lists_of_values(table[name], log_format.multi[name], where=where)
        else:
            to_text = printed_text if name in printed else text_of_values
            column = to_text(table[name], where=where)
        table = table.set_column(table.column_names.index(name), name, column)
    label, separator = log_format.label, log_format.vector_separator
    targets = log_format.targets
    given_labels = table.select([name for name, _ in targets])
    for name, regression in targets:
        if not regression:
            table = _label_words(table, name)
    numbers = {
        name: _numbers(table[name], name, file)
        for name in log_format.columns
        if name not in (*log_format.categorical, *log_format.vectors)
    }
    good, right = pa.array(np.ones(len(table), bool)), {}
    for name, length in log_format.vectors.items():
        where = f"{file}: column {name!r}"
        vectors, right[name] = vectors_of_values(table[name], separator, length, where=where)
        table = table.set_column(table.column_names.index(name), name, vectors)
        good = pc.and_(good, pa.array(right[name]))
    if log_format.float_labels:
        good = pc.and_(good, labels.rows_with_labels(targets, given_labels, numbers))
    elif label:
        is_label = pc.fill_null(pc.is_in(numbers[label], pa.array([0.0, 1.0])), False)
        good = pc.and_(good, is_label)
    for name in log_format.continuous:
        good = pc.and_(good, pc.fill_null(pc.is_finite(numbers[name]), True))
    for name in log_format.integer:
        whole = pc.equal(numbers[name], pc.floor(numbers[name]))
        good = pc.and_(good, pc.fill_null(whole, True))
    if log_format.weight:
        good = pc.and_(good, labels.are_weights(numbers[log_format.weight]))
    mask = np.asarray(good)

    def row(i: int) -> dict[str, float | None]:
        return {name: column[i].as_py() for name, column in numbers.items()}

    def reason(i: int) -> str:
        for name in (name for name, of_rows in right.items() if not of_rows[i]):
            value = batch.column(name)[i].as_py()
            return vector_damage(name, value, separator, log_format.vectors[name])
        if log_format.float_labels:
            found = {name: given_labels[name][i].as_py() for name, _ in targets}
            if damage := labels.damage_of_labels(targets, found):
                return damage
            return _damage_of(row(i), replace(log_format, label=""), None)
        given = batch.column(label)[i].as_py() if label else None
        return _damage_of(row(i), log_format, given)

    bad = [
        BadLine(str(file), start + i + 1, reason(i), b"") for i in np.flatnonzero(~mask).tolist()
    ]
    table = table.filter(good)
    for name, regression in targets:
        kept = numbers[name].filter(good)
        kept = kept if regression else kept.cast(pa.int8())
        table = table.set_column(table.column_names.index(name), name, kept)
    return ParsedRows(table, np.flatnonzero(mask).astype(np.uint64), len(mask), bad)


def _label_words(table: pa.Table, name: str) -> pa.Table:
    """Replace labels such as "true" by 0 and 1 if the label column is text, plain or coded.

    Other text becomes null.
    """
    import pyarrow as pa

    text = table[name]
    if pa.types.is_dictionary(text.type):  # a pandas category
        text = text.cast(text.type.value_type)
    if not (pa.types.is_string(text.type) or pa.types.is_large_string(text.type)):
        return table
    position = table.column_names.index(name)
    return table.set_column(position, name, labels.parse_labels(text.cast(pa.string())))


def _damage_of(values: dict[str, float | None], log_format: LogFormat, given: object) -> str:
    """Describe what is wrong with the label or the numbers of a damaged row.

    Args:
        values: column -> number, for the label, the weight and the continuous columns.
        log_format: columns of the log.
        given: the label as the file has it.
    """
    if log_format.label and (label := values[log_format.label]) not in (0, 1):
        if isinstance(given, str):
            return labels.damage_of(log_format.label, given)
        number = "missing" if label is None else f"{label:g}"
        return f"{log_format.label} is {number}, neither 0 nor 1"
    for name in log_format.integer:
        value = values[name]
        if value is not None and value != math.floor(value):
            return f"{name} is {value:g}, not a whole number"
    if (name := log_format.weight) and not labels.is_weight(str(values[name])):
        return labels.weight_damage(name, values[name])
    name = next(n for n, x in values.items() if x is not None and not math.isfinite(x))
    return f"{name} is {values[name]:g}, not a finite number"


def _numbers(column: ArrowColumn, name: str, file: FilePath) -> ArrowColumn:
    import pyarrow as pa

    try:
        # Integers above 2**53 may lose their last digits.
        return column.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"{file}: column {name!r} is {column.type}, not numbers "
            f"({str(error).splitlines()[0]}); convert it"
        ) from error
