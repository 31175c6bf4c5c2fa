"""Copy folders and files from addresses to `TMPDIR`, and to addresses.

The marker of a folder, such as `dataset.json`, is uploaded last and removed first. So a folder
that has it is whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from cowclip_merlin.addresses.address import Address, file_system, is_address, reaching
from cowclip_merlin.addresses.copy_folders import all_copies, delete_unused, passing_folder, use
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
    process ends; see `copy_folders`.

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

    _all_at_once(get, listed)


def _all_at_once(copy: Callable[[str], None], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for done in [threads.submit(copy, name) for name in names]:
            done.result()


def upload_folder(folder: Path, address: str, marker: str) -> None:
    """Replace the files at an address by those of a folder: first the marker goes, last it comes.

    Raises:
        InputError: if the address cannot be written.
    """
    before = listed_files(address)
    with reaching(address):
        files, root = file_system(address)
        if marker in before:
            files.rm_file(f"{root}/{marker}")
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]

    def put(name: str) -> None:
        with reaching(f"{address.rstrip('/')}/{name}"):
            files.put_file(str(folder / name), f"{root}/{name}")

    _all_at_once(put, [name for name in found if name != marker])
    with reaching(address):
        for name in set(before) - {*found, marker}:
            files.rm_file(f"{root}/{name}")
    put(marker)


def remove_folder(address: str, marker: str) -> None:
    """Remove the files of a folder, its marker first.

    Raises:
        InputError: if that cannot be.
    """
    names = sorted(listed_files(address), key=lambda name: name != marker)
    with reaching(address):
        files, root = file_system(address)
        for name in names:
            files.rm_file(f"{root}/{name}")


def upload_file(file: Path, address: str) -> None:
    """Replace the file at an address.

    Raises:
        InputError: if it cannot be written.
    """
    with reaching(address):
        files, path = file_system(address)
        files.put_file(str(file), path)
