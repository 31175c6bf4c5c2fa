"""Read a raw file of any kind in blocks of checked rows, as `prepare` and `score` use them."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import FilePath, size_of
from cowclip_merlin.checks import near
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.console import progress
from cowclip_merlin.workflows.parallel import Threads
from cowclip_merlin.workflows.raw.file_formats import JSON_LINES, PARQUET, Told, format_of
from cowclip_merlin.workflows.raw.json_rows import first_values, read_json_rows
from cowclip_merlin.workflows.raw.log_format import EVENTS, TAB, TABLE, LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import ParsedRows, checked_rows
from cowclip_merlin.workflows.raw.text_lines import Block, LineParser, read_blocks
from cowclip_merlin.workflows.raw.values.multi_values import vector_length

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tqdm import tqdm

SEPARATORS = (",", TAB, ";", "|", " ")  # that an error message may suggest
_LINES = 101  # to search for one with the right number of columns
_ROWS = 1000  # to search for a vector
_BLOCK_BYTES = 1 << 22  # to read of a text file for them


def check_input_files(files: Sequence[FilePath]) -> None:
    """Check before long work that input files exist."""
    for file in files:
        if file.is_file():
            continue
        if file.is_dir():
            raise InputError(f"{file}: is a folder; give the files in it, such as {file}/*.parquet")
        raise InputError(f"{file}: no such file; check the path")


def reading_bar(files: Sequence[FilePath]) -> tqdm:
    """Return a bar of the bytes that `read_rows` reads of some files, which tells the time left."""
    bar = progress(desc="read", unit="B", unit_scale=True, unit_divisor=1024)
    if not bar.disable:  # a size at an address is a request
        bar.total = sum(map(size_of, files))
    return bar


def read_rows(
    file: FilePath,
    log_format: LogFormat,
    block_bytes: int,
    threads: Threads,
    *,
    coded: bool = False,
    keep: Sequence[str] = (),
    digest: hashlib._Hash | None = None,
    bar: tqdm | None = None,
) -> Iterator[ParsedRows]:
    """Read and check a file of any kind in blocks.

    Args:
        file: to read.
        log_format: its columns.
        block_bytes: of text to read at a time.
        threads: parse blocks of text.
        coded: whether texts of ids get a dictionary.
        keep: columns to return as they are, too.
        digest: gets the bytes of a file that is read in order: text or JSON lines.
        bar: of `reading_bar`.
    """
    kind = format_of(file)
    told = [] if digest is None else [digest.update]
    told += [] if bar is None else [lambda data: bar.update(len(data))]
    if kind == JSON_LINES:
        return read_json_rows(file, log_format, block_bytes, keep=keep, told=told)
    if kind == PARQUET:
        of_vectors = 16 * sum(log_format.vectors.values())  # bytes, with their copies
        rows = max(1, block_bytes // (256 + of_vectors))
        return read_parquet_rows(file, log_format, rows, keep=keep, bar=bar)
    how = {"coded": coded, "told": told}
    return read_text_rows(file, log_format.of_file(file), block_bytes, threads, **how)


def read_text_rows(
    file: FilePath,
    log_format: LogFormat,
    block_bytes: int,
    threads: Threads | None = None,
    *,
    coded: bool = False,
    told: Sequence[Told] = (),
) -> Iterator[ParsedRows]:
    """Read and parse the file block by block."""
    blocks = read_blocks(file, block_bytes, told)
    block = next(blocks)
    if log_format.header:
        line, _, rest = block.text.partition(b"\n")
        columns = read_header(line.removesuffix(b"\r"), log_format, file)
        block = Block(block.first_line + 1, rest)
    else:
        check_first_lines(block.text, log_format, file)
        columns = list(log_format.file_columns)
    parser = LineParser(log_format, file, columns, coded=coded)
    filled = (each for each in chain([block], blocks) if each.text)
    yield from (map if threads is None else threads.in_order)(parser.parse, filled)


def read_header(text: bytes, log_format: LogFormat, file: FilePath) -> list[str]:
    """Read the names of the columns from a header line."""
    try:
        line = text.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"{file}: the header is not UTF-8 text; convert the file to UTF-8"
        ) from None
    names = log_format.cells(line)
    for name in log_format.columns:
        if name not in names:
            raise InputError(
                f"{file}: no column {name!r} in the header ({_quoted(names)})"
                f"{near(name, names) or ';'} {_remedy(line, names, log_format)}"
            )
        if names.count(name) > 1:
            raise InputError(f"{file}: column {name!r} occurs twice in the header; rename one")
    return names


def check_first_lines(block: bytes, log_format: LogFormat, file: FilePath) -> None:
    """Check that the first lines of a file without a header have its columns."""
    lines = [line.decode("utf-8", "replace") for line in block.split(b"\n", _LINES)[:_LINES]]
    found = [log_format.cells(line.removesuffix("\r")) for line in lines]
    columns = list(log_format.file_columns)
    if found[0] == columns:
        raise InputError(
            f"{file}: line 1 names the columns, as {_setting(log_format)} does; remove this line"
        )
    if not any(len(cells) == len(columns) for cells in found):
        raise InputError(
            f"{file}: line 1 has {len(found[0])} columns, but {_setting(log_format)} has "
            f"{len(columns)}; {_remedy_without_header(lines[0], log_format)}"
        )


def _remedy_without_header(line: str, log_format: LogFormat) -> str:
    if log_format.kind not in (TABLE, EVENTS):
        return "check the kind and the file"
    for other in _other_separators(log_format):
        if len(other.cells(line)) == len(log_format.file_columns):
            return _use(other.separator, log_format)
    return "name each column of the file, in its order"


def _setting(log_format: LogFormat) -> str:
    """Return where the columns of a file without a header come from."""
    found = {TABLE: "`columns`", EVENTS: "the columns of the features file"}
    return found.get(log_format.kind, f"a {log_format.kind} log")


def _quoted(names: list[str]) -> str:
    """Quote the first names, so that spaces around them are visible.

    >>> _quoted(["a", " b"])
    "'a', ' b'"
    """
    return ", ".join(repr(name[:40]) for name in names[:8]) + (", ..." if len(names) > 8 else "")


def _remedy(line: str, names: list[str], log_format: LogFormat) -> str:
    """Say how to read a file whose header lacks a column."""
    for other in _other_separators(log_format):
        if set(log_format.columns) <= set(other.cells(line)):
            return _use(other.separator, log_format)
    known = set(names) & set(log_format.columns)
    if log_format.kind == TABLE and not known:
        separator = "`separator`, or " if len(names) == 1 else ""
        return (
            f"check the names; prepare table reads other files with {separator}`columns` "
            "NAME,NAME,... if there is no header"
        )
    if log_format.kind == EVENTS and not known and len(names) > 1:
        return "check the names; if the file has no header, list its columns in the features file"
    if len(names) > 1 or log_format.kind == TABLE:
        return "check the names"
    return _rename(log_format)


def _other_separators(log_format: LogFormat) -> Iterator[LogFormat]:
    found = (separator for separator in SEPARATORS if separator != log_format.separator)
    return (replace(log_format, separator=separator) for separator in found)


def _use(separator: str, log_format: LogFormat) -> str:
    """Say how to read a file with this separator."""
    if log_format.kind == TABLE:
        return f"in prepare table, add `separator` {'tab' if separator == TAB else repr(separator)}"
    return _rename(log_format)


def _rename(log_format: LogFormat) -> str:
    if log_format.separator == ",":
        return "separate columns by commas, or by tabs in a file named .tsv or .txt"
    return "separate columns by tabs, or by commas in a file named .csv"


def read_parquet_rows(
    file: FilePath,
    log_format: LogFormat,
    rows: int,
    *,
    printed: Container[str] = (),
    keep: Sequence[str] = (),
    bar: tqdm | None = None,
) -> Iterator[ParsedRows]:
    """Read the file in blocks of at most `rows` rows."""
    import pyarrow as pa

    parquet = open_parquet(file)
    names = list(dict.fromkeys((*log_format.columns, *keep)))
    check_columns(parquet.schema_arrow.names, names, file)
    columns = [replace(c, printed=True) if c.name in printed else c for c in log_format.sources]
    start, shown = 0, bar is not None and not bar.disable
    of_row = size_of(file) / max(parquet.metadata.num_rows, 1) if shown else 0
    for batch in batches_of(parquet, file, rows, names):
        parsed = checked_rows(pa.Table.from_batches([batch]), columns, file, start)
        if keep:
            kept = batch.select(list(keep)).take(pa.array(parsed.positions))
            parsed = replace(parsed, kept=pa.Table.from_batches([kept]))
        yield parsed
        start += batch.num_rows
        if shown:
            bar.update(int(of_row * batch.num_rows))


def check_columns(found: Sequence[str], names: Iterable[str], file: FilePath) -> None:
    """Check that each name is that of one column."""
    for name in names:
        if found.count(name) == 0:
            hint = near(name, found) or "; check the kind and the names"
            raise InputError(f"{file}: no column {name!r}{hint}")
        if found.count(name) > 1:
            raise InputError(f"{file}: column {name!r} occurs twice; rename one")


def open_parquet(file: FilePath) -> pq.ParquetFile:
    """Open a file as a `pyarrow.parquet.ParquetFile`."""
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


def batches_of(
    parquet: pq.ParquetFile, file: FilePath, rows: int, names: list[str]
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of an open file in blocks of at most `rows` rows."""
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
    parsed = next(read_text_rows(file, log_format.of_file(file).only(*names), _BLOCK_BYTES), None)
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
