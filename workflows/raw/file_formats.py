"""Recognize compressed files and files that are no text by their first bytes; open text."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Told: TypeAlias = Callable[[bytes], object]
"""What gets the bytes of a file as they are read, such as a digest's `update`."""
COMPRESSED_SUFFIXES = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""Ends of the names of compressed text -> the compression."""
PARQUET, JSON_LINES, TEXT = "parquet", "JSON lines", "text"
_JSON_SUFFIXES = (".jsonl", ".ndjson")
_COMPRESSED: Mapping[bytes, str] = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
} | {b"BZh%d1AY&SY" % level: "bz2" for level in range(1, 10)}
_UNPACK = "unpack it and give the text in it; gzip, bz2, zstd and lz4 are read as they are"
_SAVE = "save its rows as CSV or parquet"
_OTHERS: Mapping[bytes, tuple[str, str]] = {
    b"PK\x03\x04": ("a zip archive", _UNPACK),
    b"PK\x05\x06": ("an empty zip archive", _UNPACK),
    b"\xfd7zXZ\x00": ("an xz file", _UNPACK),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", _UNPACK),
    b"Rar!\x1a\x07": ("a RAR archive", _UNPACK),
    b"\x1f\x9d": ("a file of compress", _UNPACK),
    b"PAR1\x15": ("parquet", "rename it to end in .parquet"),
    b"ARROW1\x00\x00": ("an Arrow file", _SAVE),
    b"SQLite format 3\x00": ("an SQLite database", _SAVE),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an old file of Microsoft Office", _SAVE),
}
_HEAD = 512  # bytes: a tar archive has its mark at byte 257
_TAR_MARK = slice(257, 262)


def format_of(file: FilePath) -> str:
    """Return what the name of a file says it is: `PARQUET`, `JSON_LINES` or `TEXT`.

    >>> format_of(Path("log.jsonl.gz")), format_of(Path("log.csv"))
    ('JSON lines', 'text')
    """
    suffixes = [suffix.lower() for suffix in Path(file.name).suffixes]
    if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        del suffixes[-1]
    elif file.suffix == ".parquet":
        return PARQUET
    return JSON_LINES if suffixes and suffixes[-1] in _JSON_SUFFIXES else TEXT


class _Told(io.RawIOBase):
    """A file that tells its bytes as they are read, in order."""

    def __init__(self, file: IO[bytes], told: Sequence[Told]) -> None:
        self._file, self._told = file, told

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        for tell in self._told:
            tell(data)
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


def open_text(file: FilePath, told: Sequence[Told] = ()) -> IO[bytes] | pa.NativeFile:
    """Open plain or compressed text for reading bytes; read it with `read_bytes`.

    Args:
        file: of text.
        told: get the bytes of the file, compressed if it is.
    """
    if not file.is_file():
        raise InputError(f"{file}: no such file; check the path")
    with file.open("rb") as raw:  # an address asks its store for each file that is opened
        kind = _compression(raw.read(_HEAD), file)
        raw.seek(0)
        head = read_bytes(_unpacked(raw, kind), _HEAD, file)
    found = [each for mark, each in _OTHERS.items() if head.startswith(mark)]
    if head[_TAR_MARK] == b"ustar":
        found = [("a tar archive", "unpack it and give the text files in it")]
    if file.suffix.lower() == ".xlsx" and found:
        found = [("an Excel file", _SAVE)]
    if found:
        what, remedy = found[0]
        raise InputError(f"{file}: is {what}, not text; {remedy}")
    raw = file.open("rb")
    return _unpacked(_Told(raw, told) if told else raw, kind)


def read_bytes(stream: IO[bytes] | pa.NativeFile, size: int, file: FilePath) -> bytes:
    """Read at most `size` bytes of text from a stream of `open_text`."""
    try:
        return stream.read(size)
    except (EOFError, OSError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:  # of the disk
            raise
        with file.open("rb") as raw:
            kind = _compression(raw.read(_HEAD), file)
        raise InputError(f"{file}: damaged {kind} file ({error}); download it again") from error


def _compression(head: bytes, file: FilePath) -> str | None:
    """Return how a file is compressed by its first bytes, or else by the end of its name."""
    found = [kind for mark, kind in _COMPRESSED.items() if head.startswith(mark)]
    return found[0] if found else COMPRESSED_SUFFIXES.get(file.suffix.lower())


def _unpacked(raw: IO[bytes], kind: str | None) -> IO[bytes] | pa.NativeFile:
    """Return the text of a file that is compressed in this way; closing it closes the file."""
    import pyarrow as pa

    if kind is None:
        return raw
    if kind != "gzip":
        return pa.CompressedInputStream(raw, kind)
    stream = gzip.GzipFile(fileobj=raw)
    stream.myfileobj = raw
    return stream


def write_staged(rows: pa.Table, path: Path) -> None:
    """Write a file that only this run reads: a GPU reads parquet, a CPU the Arrow file faster."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        # One row group, so that a file is one partition.
        pq.write_table(rows, path, row_group_size=rows.num_rows, write_statistics=False)
        return
    import pyarrow as pa

    rows = rows.combine_chunks()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(str(path), rows.schema, options=options) as file:
        file.write_table(rows)


def read_staged(path: Path) -> pa.Table:
    """Read a file of `write_staged`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        return pq.ParquetFile(path).read()
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()
