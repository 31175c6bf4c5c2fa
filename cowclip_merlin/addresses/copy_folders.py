"""The folder of all local copies: which of them a process uses, and which are deleted.

Whoever makes or uses a copy locks its folder, together with others, until the process ends. Before
a copy is made, those are deleted that nobody has locked: copies of other versions of the same
folder, which nothing will ask for again, and what nobody has used for `UNUSED_DAYS`. Only folders
with the names of this module are deleted.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from cowclip_merlin.errors import InputError

UNUSED_DAYS = 7
KEPT = "kept-"
"""Begins the name of a folder that could not be uploaded: its user decides."""

_PASSING = "passing-"
_OURS = re.compile(rf"[0-9a-f]{{16}}-[0-9a-f]{{16}}|{_PASSING}[a-z0-9_]{{8}}")
"""Names of what may be deleted: copies, of an address and a version, and passing folders."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW  # to open a folder, but no link to one


def all_copies() -> Path:
    """Return the folder of all copies, which only this user may read.

    Raises:
        InputError: if it is a link or a file, or another user has made it or may read it.
    """
    folder = Path(tempfile.gettempdir()) / f"cowclip-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        what = "is no folder, maybe a link to one; remove it, or"
    elif found.st_uid != os.getuid():
        what = "belongs to another user;"
    elif found.st_mode & 0o077:
        what = "is open to other users; remove it, or"
    else:
        return folder
    raise InputError(f"{folder}: {what} set TMPDIR to another folder")


@contextmanager
def passing_folder() -> Iterator[Path]:
    """Yield a new folder, locked; remove it when the block ends, unless it has another name."""
    made = _new_folder(all_copies())
    lock = _shared_lock(made)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def _new_folder(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=_PASSING, dir=folder))


def use(copy: Path) -> bool:
    """Keep the folder of a copy until this process ends; False if there is none."""
    folder = copy.parent
    with suppress(FileNotFoundError):
        if copy.exists():
            _hold(folder, folder.stat().st_ino)
            os.utime(folder)  # when it was used last
        return copy.exists()  # another process may have deleted it before it was locked
    return False


@cache
def _hold(folder: Path, inode: int) -> int:
    """Lock a folder, with its inode, once; the system frees it when the process ends."""
    return _shared_lock(folder)


def _shared_lock(folder: Path) -> int:
    """Return the open folder, locked together with others."""
    target = os.open(folder, _FOLDER)
    with suppress(OSError):  # a disk without locks, where `delete_unused` deletes nothing
        fcntl.flock(target, fcntl.LOCK_SH)
    return target


def delete_unused(copy: Path) -> None:
    """Delete copies that no process uses, to make room for a new one.

    Args:
        copy: the new one, in a folder whose name is that of its address, "-" and its version.
    """
    of_address = f"{copy.parent.name.partition('-')[0]}-"
    oldest = time.time() - UNUSED_DAYS * 86_400
    for folder in all_copies().iterdir():
        if not _OURS.fullmatch(folder.name):
            continue
        with suppress(OSError):  # in use, deleted by another process, or on a disk without locks
            if folder.name.startswith(of_address) or folder.stat().st_mtime < oldest:
                _delete(folder)


def _delete(folder: Path) -> None:
    lock = os.open(folder, _FOLDER)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino != folder.stat().st_ino:
            return  # another process has made the folder again, which nobody has locked here
        gone = _new_folder(folder.parent)
        folder.rename(gone)  # at once: nobody finds half of it
        shutil.rmtree(gone, ignore_errors=True)
    finally:
        os.close(lock)
