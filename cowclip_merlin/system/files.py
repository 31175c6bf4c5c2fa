"""Write files and folders completely or not at all, and check paths before long work."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex

from cowclip_merlin.addresses import FilePath, path_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.folders import try_lock
from cowclip_merlin.types import Json

_LEFT = ".tmp"  # suffix of the names of unfinished files and folders


@contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """Yield a temporary name next to `path`; rename it to `path` if the block succeeds.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic_write(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    path = Path(path)
    for left in leftovers_of_killed(path):
        if left.is_file():
            left.unlink(missing_ok=True)
    temporary = _temporary_name(path)
    with ExitStack() as stack:
        try:
            _make_and_lock(temporary, path, Path.touch, stack)
            yield temporary
            os.replace(temporary, path)  # locked until then, or others would take it for a leftover
        except BaseException:  # Ctrl-C may come right after the file was made
            with suppress(OSError):
                temporary.unlink()
            raise


def _make_and_lock(
    temporary: Path, target: Path, make: Callable[[Path], None], stack: ExitStack
) -> None:
    while True:
        try:
            make(temporary)
        except OSError as error:  # name the path of the caller, not the temporary one
            raise OSError(error.errno, error.strerror, str(target)) from None
        with suppress(FileNotFoundError):
            ours = stack.enter_context(try_lock(temporary))
            # Another process may have removed it as a leftover before it was locked.
            if ours is not False and temporary.exists():
                return


@contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """Yield a temporary name for a folder; rename it to `path` if the block succeeds.

    Raises:
        InputError: if `path` exists or its parent folder does not exist.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a"
    >>> with atomic_folder(target) as temporary:
    ...     temporary.mkdir()
    >>> target.is_dir(), len(list(target.parent.iterdir()))
    (True, 1)
    """
    path = Path(path)
    if path.exists():
        raise InputError(f"{path}: already exists; use another `out`")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; create it first")
    clear_leftovers(path)
    with work_folder(path) as work:
        yield work / "whole"
        rename_if_free(work / "whole", path)


def rename_if_free(made: Path, target: Path) -> None:
    """Rename a folder to a name that does not exist yet.

    Raises:
        InputError: if another process has created a folder of that name in the meantime.
    """
    try:
        made.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise InputError(
            f"{target}: another process has created it in the meantime; use another `out`"
        ) from None


@contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary work folder next to `target`; remove it when the block ends.

    The folder is locked, so that other processes do not remove it as a leftover.
    """
    work = _temporary_name(target)
    with ExitStack() as stack:
        try:
            _make_and_lock(work, target, partial(Path.mkdir, mode=0o700, exist_ok=True), stack)
            yield work
            shutil.rmtree(work, ignore_errors=True)
        except BaseException:  # Ctrl-C may come right after the folder was made, or at its removal
            shutil.rmtree(work, ignore_errors=True)
            raise


def clear_leftovers(target: Path) -> None:
    """Remove the work folders for `target` that killed processes left.

    A work folder may contain the previous `target` as `replaced`. If `target` does not exist,
    move that folder back.

    Raises:
        InputError: if another process is writing `target` now.
    """
    for left in leftovers_of_killed(
        target, taken=f"{target}: another process is writing it now; wait until it ends"
    ):
        if not left.is_dir():
            continue
        with suppress(OSError):
            if (left / "replaced").exists() and not target.exists():
                (left / "replaced").rename(target)
        shutil.rmtree(left, ignore_errors=True)


def leftovers_of_killed(target: Path, taken: str | None = None) -> Iterator[Path]:
    """Yield temporary files and folders of `target` that no running process has locked.

    Process ids in names cannot identify them, because every container uses id 1.
    """
    # Match the full form of the temporary names: a user's files may have the prefix and suffix.
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
    return path.with_name(f".{path.name}.{token_hex(4)}{_LEFT}")


@contextmanager
def reading_parquet(path: Path | str) -> Iterator[None]:
    """Convert errors of reading a prepared parquet file to an InputError of one line.

    Raises:
        InputError: if the file is missing or damaged.
    """
    import pyarrow

    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; prepare the data again") from None
    except (pyarrow.ArrowException, OSError) as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # an error of the disk, not of the file
            raise
        words = " ".join(str(error).split())
        raise InputError(
            f"{path}: damaged parquet ({words:.120}); prepare the data again"
        ) from None


def check_writable(path: Path | str, *, overwrite: bool = False) -> None:
    """Check before long work that a file can be written at a path.

    Args:
        path: path of the file.
        overwrite: whether to replace an existing file.

    Raises:
        InputError: if it is a folder or a device, its folder is missing or not writable, or the
            file exists and `overwrite` is false.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a file to write")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a regular file; give the name of a file to write")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: already exists; use `overwrite` to replace it")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; create it first")
    try:  # permissions are not enough: the disk may be read-only, or the name too long
        _try_to_write(_temporary_name(path))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); use another path"
        ) from None


def _try_to_write(temporary: Path) -> None:
    try:
        temporary.touch()
        temporary.unlink()
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path | str, value: Json) -> None:
    """Write a value as indented JSON, completely or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, sort_keys=False) + "\n", encoding="utf-8")


def read_json(path: str | FilePath) -> Json:
    """Read a JSON file.

    Raises:
        InputError: if the file is missing or damaged.
    """
    try:
        return json.loads(path_of(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the folder") from None
    except (RecursionError, ValueError) as error:  # ValueError also for thousands of digits
        reason, _, _ = str(error).partition(";")  # a remedy of Python itself may follow
        raise InputError(f"{path}: damaged JSON ({reason}); write it again") from error
