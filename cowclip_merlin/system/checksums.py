"""Compute checksums that detect damaged files at memory speed; they do not detect forgery."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.addresses import Address, FilePath, path_of, size_of

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK = 4096  # bytes per block
_AT_ONCE = 1 << 26


def checksum(file: str | FilePath) -> str:
    """Return the SHA-256 of a file's size and the sums of its 4096-byte blocks as 64-bit numbers.

    It detects every change of up to eight consecutive bytes. It misses other random changes with
    probability 2**-64.

    Raises:
        OSError: if the file cannot be read.
        InputError: if the file is at an address that cannot be read.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a"
    >>> _ = file.write_bytes(bytes(10_000))
    >>> before = checksum(file)
    >>> _ = file.write_bytes(bytes(9_999) + b"1")
    >>> checksum(file) == before
    False
    """
    file, digest = path_of(file), hashlib.sha256()
    size = size_of(file)
    for part in _mapped(file, size) if isinstance(file, Path) else _streamed(file):
        _add(digest, part)
    digest.update(str(size).encode())
    return digest.hexdigest()


class ChecksumFile(io.RawIOBase):
    """A new file that knows the `checksum` of what was written, without a second look at it.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> with ChecksumFile(path) as file:
    ...     _ = [file.write(bytes([i]) * 3000) for i in range(4)]
    >>> file.checksum() == checksum(path)
    True
    """

    def __init__(self, path: Path) -> None:
        self._file, self._digest = path.open("wb", buffering=0), hashlib.sha256()
        self._size, self._rest = 0, b""

    def writable(self) -> bool:
        """Whether it can be written: always."""
        return True

    def write(self, data: bytes) -> int:
        """Write all of the data."""
        view = memoryview(data).cast("B")
        place = 0
        while place < len(view):
            place += self._file.write(view[place:])
        self._size += len(view)
        part = np.frombuffer(self._rest + view if self._rest else view, np.uint8)
        whole = len(part) - len(part) % _BLOCK
        for first in range(0, whole, _AT_ONCE):
            _add(self._digest, part[first : min(first + _AT_ONCE, whole)])
        self._rest = part[whole:].tobytes()
        return len(view)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def checksum(self) -> str:
        """Return the checksum of all that was written."""
        digest = self._digest.copy()
        digest.update(self._rest + str(self._size).encode())
        return digest.hexdigest()


def write_parquet(rows: pa.Table, path: Path, **options: Any) -> str:
    """Write a table with options of `pyarrow.parquet.write_table`; return the file's checksum."""
    import pyarrow.parquet as pq

    with ChecksumFile(path) as file:
        pq.write_table(rows, file, **options)
    return file.checksum()


def _mapped(file: Path, size: int) -> Iterator[npt.NDArray[np.uint8]]:
    # An empty file cannot be mapped.
    data = np.memmap(file, np.uint8, "r") if size else np.empty(0, np.uint8)
    for first in range(0, size, _AT_ONCE):
        yield data[first : first + _AT_ONCE]


def _streamed(file: Address) -> Iterator[npt.NDArray[np.uint8]]:
    with file.open() as stream:
        while part := stream.read(_AT_ONCE):  # all but the last one are full
            yield np.frombuffer(part, np.uint8)


def _add(digest: hashlib._Hash, part: npt.NDArray[np.uint8]) -> None:
    whole = len(part) - len(part) % _BLOCK
    words = part[:whole].view(np.uint64).reshape(-1, _BLOCK // 8)
    digest.update(np.add.reduce(words, axis=1).tobytes())
    digest.update(part[whole:].tobytes())
