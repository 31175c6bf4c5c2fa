"""Files at addresses such as s3://bucket/day.csv, which fsspec and its packages read."""

from __future__ import annotations

import glob
import io
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, TypeAlias

from cowclip_merlin.errors import InputError, not_installed
from cowclip_merlin.types import Json

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs"} | {
    "abfs": "adlfs", "abfss": "adlfs",
}  # fmt: skip
_BLOCK_BYTES = 1 << 23  # to ask for at a time


@dataclass(frozen=True)
class Address:
    """A file or folder at an address; as much of `pathlib.Path` as reading a file needs.

    Attributes:
        text: the address.

    >>> Address("s3://bucket/logs/day.csv.gz").name, Address("s3://bucket/logs/").name
    ('day.csv.gz', 'logs')
    """

    text: str

    def __str__(self) -> str:
        """Return the address."""
        return self.text

    def __truediv__(self, name: str) -> Address:
        """Return the address of what is below it."""
        return Address(f"{self.text.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self.text).name

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return PurePosixPath(self.text).stem

    @property
    def suffix(self) -> str:
        """The end of the last part, such as ".gz"."""
        return PurePosixPath(self.text).suffix

    def is_file(self) -> bool:
        """Whether there is a file."""
        return self.ask(lambda files, path: files.isfile(path))

    def is_dir(self) -> bool:
        """Whether there are files below it."""
        return self.ask(lambda files, path: files.isdir(path))

    def exists(self) -> bool:
        """Whether there is a file or folder."""
        return self.ask(lambda files, path: files.exists(path))

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open the file for reading; an error of the network while reading is an `InputError`."""
        raw = self.ask(lambda files, path: files.open(path, mode, block_size=_BLOCK_BYTES))
        return io.BufferedReader(_Stream(raw, self.text), 1 << 16)

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return what the file says now."""
        return self.ask(lambda files, path: files.cat_file(path)).decode(encoding)

    def ask(self, question: Callable[[AbstractFileSystem, str], Json]) -> Json:
        """Ask the file system about the path as it is now; all it raises is an `InputError`."""
        with reaching(self.text):
            files, path = file_system(self.text)
            files.invalidate_cache()
            return question(files, path)


FilePath: TypeAlias = "Path | Address"
"""A file here or at an address."""


class _Stream(io.RawIOBase):
    """A file of fsspec whose errors name the address."""

    def __init__(self, file: IO[bytes], address: str) -> None:
        self._file, self._address = file, address

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: memoryview) -> int:
        with reaching(self._address):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def is_address(path: object) -> bool:
    """Whether it is an address, as text or as an `Address`.

    >>> is_address("s3://bucket/a"), is_address("logs/a"), is_address(Path("a"))
    (True, False, False)
    """
    return isinstance(path, Address) or bool(isinstance(path, str) and _ADDRESS.match(path))


def path_of(path: str | Path | Address) -> FilePath:
    """Return an address as an `Address`, and anything else as a `Path`."""
    if isinstance(path, Address):
        return path
    return Address(path) if is_address(path) else Path(path)


def beside(file: FilePath, name: str) -> FilePath:
    """Return what a file names: an address, an absolute path, or a path from its own folder.

    >>> beside(Address("s3://bucket/a/f.yaml"), "../DATA"), beside(Path("a/f.yaml"), "DATA")
    (Address(text='s3://bucket/DATA'), PosixPath('a/DATA'))
    """
    if is_address(name) or isinstance(file, Path):
        return path_of(name) if is_address(name) else file.parent / name
    if posixpath.isabs(name):
        return Path(name)
    scheme, _, path = file.text.partition("://")
    return Address(f"{scheme}://{posixpath.normpath(f'{posixpath.dirname(path)}/{name}')}")


def size_of(file: FilePath) -> int:
    """Return the bytes of a file."""
    return file.ask(lambda fs, path: fs.size(path)) if is_address(file) else file.stat().st_size


def expand(files: Iterable[str | Path | Address]) -> list[FilePath]:
    """Return files, and instead of each pattern those that it matches, in `natural_order`.

    `*`, `?` and `[ab]` match as in a shell. A file whose own name has such a character is taken as
    it is.

    Raises:
        InputError: if a pattern matches no file, or a file occurs twice, maybe by a link.

    >>> expand(["a.csv"])
    [PosixPath('a.csv')]
    """
    expanded = [found for file in files for found in _matching(path_of(file))]
    first: dict[object, FilePath] = {}
    for file in expanded:
        other = first.setdefault(_identity(file), file)
        if other is not file:
            what = "occurs twice" if str(other) == str(file) else f"is the same file as {other}"
            raise InputError(f"{file}: {what}; give each file once")
    return expanded


def natural_order(name: str) -> tuple[object, ...]:
    """Return a sort key that compares numbers in names as numbers.

    >>> sorted(["day_10.csv", "day_2.csv", "day_02.csv", "day.csv"], key=natural_order)
    ['day.csv', 'day_02.csv', 'day_2.csv', 'day_10.csv']
    >>> sorted(["day2", "day"], key=natural_order)
    ['day', 'day2']
    """
    parts = re.split("([0-9]+)", name)
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), name


def _identity(file: FilePath) -> object:
    """Return what two names of one file have in common."""
    if isinstance(file, Address):
        return file.text
    try:
        found = file.stat()
    except OSError:  # whoever reads it tells why
        return str(file)
    return found.st_dev, found.st_ino


def _matching(file: FilePath) -> list[FilePath]:
    if not glob.has_magic(str(file)) or file.exists():
        return [file]
    if isinstance(file, Address):
        path, names = file.ask(lambda files, path: (path, files.glob(path)))
        # A path may begin with a slash, and follow a host, as in hdfs://host/logs/day_*.csv.
        whole = file.text.endswith(path)
        start = file.text.removesuffix(path) if whole else _ADDRESS.match(file.text)[0]
        found = [Address(start + name) for name in sorted(names, key=natural_order)]
    else:
        found = [Path(name) for name in sorted(glob.glob(str(file)), key=natural_order)]
    if not found:
        raise InputError(f"{file}: matches no file; check the pattern")
    return found


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """Turn whatever fsspec and its packages raise into one line with the address."""
    try:
        yield
    except InputError:
        raise
    except ImportError as error:
        package = _PACKAGES.get(_ADDRESS.match(address)[1].lower())
        if package is None:
            raise InputError(f"{address}: {error}") from None
        raise not_installed(package, by=address) from None
    except FileNotFoundError as error:
        what = "no such bucket" if "bucket" in str(error) else "no such file"
        raise InputError(f"{address}: {what}; check the address") from None
    except PermissionError as error:
        raise InputError(f"{address}: no permission ({_reason(error)}); check your keys") from None
    except Exception as error:  # each package has errors of its own
        raise InputError(
            f"{address}: cannot be reached ({_reason(error)}); check the address, your keys and "
            "the network"
        ) from error


def _reason(error: Exception) -> str:
    return f"{' '.join(str(error).split()) or type(error).__name__:.160}"


def file_system(address: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of an address, and the path of the address there."""
    from fsspec.core import url_to_fs

    files, path = url_to_fs(address)
    return files, path.rstrip("/")
