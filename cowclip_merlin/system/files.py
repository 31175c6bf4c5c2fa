"""Files that are either whole or not there."""

from __future__ import annotations

import errno
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
from cowclip_merlin.system.locks import try_lock

_LEFT = ".tmp"  # ends the names of what is there while something is made


@contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it when the block ends without an exception.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic_write(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    path = Path(path)
    temporary = _temporary_name(path)
    for left in _leftovers_of_killed(path):
        if left.is_file():
            left.unlink(missing_ok=True)
    temporary.touch()
    try:
        with try_lock(temporary):
            yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """A temporary name for a folder, renamed to `path` when the block ends without an exception.

    Raises:
        InputError: `path` is there already, or the folder it is to be in is not.

    >>> target = Path(tempfile.mkdtemp()) / "a"
    >>> with atomic_folder(target) as temporary:
    ...     temporary.mkdir()
    >>> target.is_dir(), len(list(target.parent.iterdir()))
    (True, 1)
    """
    path = Path(path)
    if path.exists():
        raise InputError(f"{path}: already exists; use another --out")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; create it first")
    clear_leftovers(path)
    with work_folder(path) as work:
        yield work / "whole"
        rename_if_free(work / "whole", path)


def rename_if_free(made: Path, target: Path) -> None:
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
            ours = stack.enter_context(try_lock(work))
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
    for left in _leftovers_of_killed(
        target, taken=f"{target}: another process is making it now; wait"
    ):
        if not left.is_dir():
            continue
        with suppress(OSError):
            if (left / "replaced").exists() and not target.exists():
                (left / "replaced").rename(target)
        shutil.rmtree(left, ignore_errors=True)


def _leftovers_of_killed(target: Path, taken: str | None = None) -> Iterator[Path]:
    """Temporary files and folders of `target` that no running process has locked.

    A process number in a name would not tell: in containers all processes are number 1.
    """
    # As `_temporary_name` and `mkdtemp` name them: a user's own files may begin and end so, too.
    ours_alone = re.compile(rf"\.{re.escape(target.name)}\.(\d+|[a-z0-9_]{{8}})\{_LEFT}")
    for left in target.parent.glob(f".{glob.escape(target.name)}.*{_LEFT}"):
        if not ours_alone.fullmatch(left.name):
            continue
        with suppress(FileNotFoundError), try_lock(left) as ours:
            if ours:
                yield left
            elif ours is False and taken:
                raise InputError(taken)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}{_LEFT}")


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


def check_writable(path: Path | str, *, overwrite: bool = False) -> None:
    """Refuse, before long work, a path where no file can be written after it.

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
        raise InputError(f"{path}: already exists; use --overwrite to replace it")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; create it first")
    temporary = _temporary_name(path)
    try:  # rights alone do not tell: the disk may be read-only, the name too long
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); name another") from None


def write_json(path: Path | str, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    with atomic_write(path) as temporary:
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
