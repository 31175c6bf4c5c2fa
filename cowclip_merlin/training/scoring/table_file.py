"""Write a table as the name of the file says: parquet, CSV, or compressed CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import atomic_write, check_writable

if TYPE_CHECKING:
    import pyarrow as pa

_ENDS = (".parquet", ".csv", ".csv.gz")


def check_table_file(path: Path | str, *, overwrite: bool = False) -> None:
    """Check before long work that a table can be written at a path.

    Raises:
        InputError: if its name says nothing about its form, or it cannot be written.

    >>> check_table_file("scores.xlsx")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: scores.xlsx: ends neither in .parquet nor in .csv or \
.csv.gz, which say what to write; use such a name
    """
    check_writable(path, overwrite=overwrite)
    if not str(path).lower().endswith(_ENDS):
        raise InputError(
            f"{path}: ends neither in .parquet nor in .csv or .csv.gz, which say what to write; "
            "use such a name"
        )


@contextmanager
def table_file(path: Path) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that appends a table to the file, which is whole or not there.

    Raises:
        InputError: if a column has lists and the file is CSV.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    writers: list[pq.ParquetWriter | pa.csv.CSVWriter] = []
    name = path.name.lower()
    with atomic_write(path) as temporary:
        sink: pa.NativeFile | Path = temporary
        if name.endswith(".gz"):
            sink = pa.CompressedOutputStream(str(temporary), "gzip")

        def write(table: pa.Table) -> None:
            if not writers:
                if name.endswith(".parquet"):
                    writers.append(pq.ParquetWriter(temporary, table.schema))
                else:
                    _refuse_lists(table.schema, path)
                    writers.append(pa.csv.CSVWriter(sink, table.schema))
            writers[0].write_table(table)

        try:
            yield write
        finally:
            for each in writers:
                each.close()
            if sink is not temporary:
                sink.close()


def _refuse_lists(schema: pa.Schema, path: Path) -> None:
    import pyarrow.types as types

    for column in schema:
        if types.is_nested(column.type):
            raise InputError(
                f"{path}: column {column.name!r} is {column.type}, which CSV cannot hold; write "
                ".parquet"
            )
