"""Read the rows of a raw parquet log in batches, and check them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import ParsedRows, checked_rows

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def read_parquet_rows(
    file: FilePath,
    log_format: LogFormat,
    rows: int,
    *,
    printed: Container[str] = (),
    keep: Sequence[str] = (),
) -> Iterator[ParsedRows]:
    """Read the file in blocks of at most `rows` rows."""
    import pyarrow as pa

    parquet = open_parquet(file)
    names = list(dict.fromkeys((*log_format.columns, *keep)))
    check_columns(parquet.schema_arrow.names, names, file)
    columns = [replace(c, printed=True) if c.name in printed else c for c in log_format.roles]
    start = 0
    for batch in _batches(parquet, file, rows, names):
        parsed = checked_rows(pa.Table.from_batches([batch]), columns, file, start)
        if keep:
            kept = batch.select(list(keep)).take(pa.array(parsed.positions))
            parsed = replace(parsed, kept=pa.Table.from_batches([kept]))
        yield parsed
        start += batch.num_rows


def check_columns(found: Sequence[str], names: Iterable[str], file: FilePath) -> None:
    """Check that each name is that of one column."""
    for name in names:
        if found.count(name) == 0:
            raise InputError(f"{file}: no column {name!r}; check the kind and the names")
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
