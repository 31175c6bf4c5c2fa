"""Files that are either whole or not there."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it when the block ends without an exception.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    path = Path(path)
    temporary = _beside(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def whole_folder(path: Path | str) -> Iterator[Path]:
    """A name to make a folder under, renamed to `path` when the block ends without an exception.

    Raises:
        InputError: `path` is there already, or the folder it is to be in is not.

    >>> target = Path(tempfile.mkdtemp()) / "a"
    >>> with whole_folder(target) as temporary:
    ...     temporary.mkdir()
    >>> target.is_dir(), len(list(target.parent.iterdir()))
    (True, 1)
    """
    path = Path(path)
    if path.exists():
        raise InputError(f"{path}: is there already; use another --out")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; make it first")
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield work / "whole"
        (work / "whole").rename(path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def alone_in(folder: Path, taken: str) -> Iterator[None]:
    """Keep other processes that ask for the same out of a folder; it is made if it is not there.

    The lock ends with the process, however that ends, and leaves no file behind.

    Args:
        folder: whose owner this process wants to be.
        taken: what to say if another one is.

    Raises:
        InputError: another process is in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder) as ours:
        if ours is False:
            raise InputError(f"{folder}: {taken}")
        yield


@contextmanager
def locked(folder: Path) -> Iterator[bool | None]:
    """Lock a folder within the block: True, or False if another process has; None without locks.

    >>> with locked(Path(tempfile.mkdtemp())) as ours:
    ...     ours
    True
    """
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours: bool | None = True
        except BlockingIOError:
            ours = False
        except OSError:  # a disk without locks
            ours = None
        yield ours
    finally:
        os.close(place)


@contextmanager
def reading_parquet(path: Path | str) -> Iterator[None]:
    """Says of a parquet file of a prepared folder, in one line, that it is not there or damaged.

    Raises:
        InputError: the block could not read the file.
    """
    import pyarrow

    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; prepare the data again") from None
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the file's
            raise
        words = " ".join(str(error).split())
        raise InputError(
            f"{path}: damaged parquet ({words:.120}); prepare the data again"
        ) from None


def refuse_no_file(path: Path | str, *, overwrite: bool = False) -> None:
    """Refuse, before long work, a place where no file can be written after it.

    Args:
        path: of the file.
        overwrite: whether to replace a file that is there.

    Raises:
        InputError: it is a folder or a device, or its folder is not there or takes no files; or a
            file is there, and `overwrite` does not allow to replace it.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file to write")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is no regular file; name a file to write")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: is there already; use --overwrite to replace it")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; make it first")
    temporary = _beside(path)
    try:  # rights alone do not tell: the disk may be read-only, the name too long
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); name another") from None


def write_json(path: Path | str, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, sort_keys=False) + "\n", encoding="utf-8")


def read_json(path: Path | str) -> Any:
    """Read JSON.

    Raises:
        InputError: the file is missing or damaged.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: damaged JSON ({error}); make it again") from error
