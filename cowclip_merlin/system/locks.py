"""Lock files and folders; a lock ends with its process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cowclip_merlin.errors import InputError


@contextmanager
def lock_folder(folder: Path, taken: str) -> Iterator[None]:
    """Lock a folder for this process within the block; create it if it is missing.

    The lock ends with the process, even if it is killed, and leaves no file behind.

    Args:
        folder: folder to lock.
        taken: error message if another process has locked it.

    Raises:
        InputError: if another process has locked it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with try_lock(folder) as ours:
        if ours is False:
            raise InputError(f"{folder}: {taken}")
        yield


@contextmanager
def try_lock(path: Path) -> Iterator[bool | None]:
    """Lock a file or folder within the block: True, or False if another process has it.

    None if the disk does not support locks.

    >>> import tempfile
    >>> with try_lock(Path(tempfile.mkdtemp())) as ours:
    ...     ours
    True
    """
    target = os.open(path, os.O_RDONLY)
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
