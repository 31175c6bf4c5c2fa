"""Copies of folders at addresses in `TMPDIR`: made once for each version, deleted when unused.

Whoever makes or uses a copy locks its folder, together with others, until the process ends. Before
a copy is made, those are deleted that nobody has locked: copies of other versions of the same
folder, which nothing will ask for again, and what nobody has used for `UNUSED_DAYS`. Only folders
with the names of this module are deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from cowclip_merlin.addresses.address import Address, file_system, is_address, reaching
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import JsonObject

_VERSION = ("ETag", "etag", "generation", "LastModified", "last_modified", "mtime", "created")
"""What file systems tell of a file that changes with its content."""

ORIGIN = ".address"
"""File beside a local copy: the address of the folder."""

_AT_ONCE = 8  # files that are copied together


def listed_files(address: str) -> dict[str, JsonObject]:
    """Return what is known of each file below an address: relative path -> facts.

    Raises:
        InputError: if it cannot be reached.
    """
    with reaching(address):
        files, path = file_system(address)
        files.invalidate_cache()
        found = files.find(path, detail=True)
    return {name[len(path) :].lstrip("/"): about for name, about in found.items() if name != path}


def version_of(listed: Mapping[str, JsonObject]) -> str:
    """Return a hash of the sizes and versions of files."""
    facts = [
        [name, listed[name].get("size"), [str(listed[name].get(key)) for key in _VERSION]]
        for name in sorted(listed)
    ]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def origin(folder: Path) -> str:
    """Return the address that a folder is a copy of, or else its absolute path."""
    with suppress(OSError):
        return (folder.absolute().parent / ORIGIN).read_text(encoding="utf-8")
    return str(folder.absolute())


def local_folder(path: str | Path | Address, marker: str) -> Path:
    """Return the path of a folder; of one at an address that of a copy, made if there is none.

    A copy is of one version of all files, by their sizes and etags. It stays as it is until this
    process ends.

    Args:
        path: the folder.
        marker: file that the folder has when it is whole.

    Raises:
        InputError: if the folder at the address has no marker, or cannot be read; or somebody
            changed its copy.
    """
    if not is_address(path):
        return Path(path)
    address = str(path)
    listed = _listed_whole(address, marker)
    copy = copy_of(address, listed)
    if not use(copy):
        delete_unused(copy)
        with passing_folder() as made:
            (made / ORIGIN).write_text(address, encoding="utf-8")
            _download(address, listed, made / copy.name)
            with suppress(OSError):  # another process was as fast
                made.rename(copy.parent)
            if not use(copy):
                raise InputError(f"{copy.parent}: has no {copy.name}; remove it, and try again")
    return copy


@contextmanager
def passing_copy(address: str, marker: str, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Yield a copy of some files of a folder, which is removed when the block ends.

    Args:
        address: of the folder.
        marker: file that the folder has when it is whole.
        wanted: tells by the name of a file whether it is copied.

    Raises:
        InputError: if the folder has no marker, or cannot be read.
    """
    listed = _listed_whole(address, marker)
    with passing_folder() as work:
        _download(address, {n: x for n, x in listed.items() if n == marker or wanted(n)}, work)
        yield work


def _listed_whole(address: str, marker: str) -> dict[str, JsonObject]:
    listed = listed_files(address)
    if marker not in listed:
        raise InputError(f"{address}: no such folder with a {marker}; check the address")
    return listed


def copy_of(address: str, listed: Mapping[str, JsonObject]) -> Path:
    """Return where the copy of this version of a folder is, or will be."""
    name = hashlib.sha256(address.encode()).hexdigest()[:16]
    return all_copies() / f"{name}-{version_of(listed)}" / Address(address).name


def _download(address: str, listed: Mapping[str, JsonObject], folder: Path) -> None:
    files, root = file_system(address)

    def get(name: str) -> None:
        target = folder / name
        if ".." in target.parts:  # it would be outside the folder
            raise InputError(f"{address}: has a file named {name!r}; remove it")
        target.parent.mkdir(parents=True, exist_ok=True)
        with reaching(f"{address.rstrip('/')}/{name}"):
            files.get_file(f"{root}/{name}", str(target))
        if target.stat().st_size != listed[name]["size"]:
            raise InputError(f"{address}: {name} changed while it was copied; try again")

    all_at_once(get, listed)


def all_at_once(copy: Callable[[str], None], names: Iterable[str]) -> None:
    """Copy files, some of them together."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for done in [threads.submit(copy, name) for name in names]:
            done.result()


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
