"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError

_LEFT = ".tmp"  # ends the names of what is there while something is made


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
    for left in _left_of_killed(path):
        if left.is_file():
            left.unlink(missing_ok=True)
    temporary.touch()
    try:
        with locked(temporary):
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
    clear_leftovers(path)
    with work_folder(path) as work:
        yield work / "whole"
        move_new(work / "whole", path)


def move_new(made: Path, target: Path) -> None:
    """Rename a folder to a name that is free.

    Raises:
        InputError: another process has made a folder of that name meanwhile.
    """
    try:
        made.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise InputError(
            f"{target}: another process has made it meanwhile; use another --out"
        ) from None


@contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` to work in, which is removed when the block ends.

    It is locked, so that others can tell it from what a killed process left.
    """
    with ExitStack() as stack:
        work = _locked_folder(target, stack)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _locked_folder(target: Path, stack: ExitStack) -> Path:
    while True:
        try:
            made = tempfile.mkdtemp(prefix=f".{target.name}.", suffix=_LEFT, dir=target.parent)
        except OSError as error:  # it names what was asked for: the temporary name is nobody's
            raise OSError(error.errno, error.strerror, str(target)) from None
        work = Path(made)
        with suppress(FileNotFoundError):
            ours = stack.enter_context(locked(work))
            # Before it was locked another process may have taken it for a leftover.
            if ours is not False and work.exists():
                return work


def clear_leftovers(target: Path) -> None:
    """Remove the work folders for `target` of processes that were killed.

    One may hold, as `replaced`, the folder that was at `target`; without another one there, that
    one goes back.

    Raises:
        InputError: another process is making `target` now.
    """
    for left in _left_of_killed(target, taken=f"{target}: another process is making it now; wait"):
        if not left.is_dir():
            continue
        with suppress(OSError):
            if (left / "replaced").exists() and not target.exists():
                (left / "replaced").rename(target)
        shutil.rmtree(left, ignore_errors=True)


def _left_of_killed(target: Path, taken: str | None = None) -> Iterator[Path]:
    """What was made beside `target` and is locked by no process. Process numbers would not tell."""
    # As `_beside` and `mkdtemp` name them: a user's own files may begin and end so, too.
    ours_alone = re.compile(rf"\.{re.escape(target.name)}\.(\d+|[a-z0-9_]{{8}})\{_LEFT}")
    for left in target.parent.glob(f".{glob.escape(target.name)}.*{_LEFT}"):
        if not ours_alone.fullmatch(left.name):
            continue
        with suppress(FileNotFoundError), locked(left) as ours:
            if ours:
                yield left
            elif ours is False and taken:
                raise InputError(taken)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}{_LEFT}")


def remove_unfinished(folder: Path) -> None:
    """Remove files that `replacing` was making in a folder when its process was killed.

    Only for the one process that writes there.
    """
    for left in folder.glob(".*.*.tmp"):
        if left.suffixes[-2][1:].isdecimal():  # the number of a process, as in `_beside`
            with suppress(OSError):
                left.unlink()


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
    target = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours: bool | None = True
        except BlockingIOError:
            ours = False
        except OSError:  # a disk without locks
            ours = None
        yield ours
    finally:
        os.close(target)


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
    """Refuse, before long work, a target where no file can be written after it.

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
