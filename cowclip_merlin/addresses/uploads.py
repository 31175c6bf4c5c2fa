"""Output at addresses: made in `TMPDIR`, and uploaded when it is whole or a command stops.

The marker of a folder, such as `dataset.json`, is uploaded last and removed first. So a folder
that has it is whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cowclip_merlin.addresses.address import Address, file_system, is_address, reaching
from cowclip_merlin.addresses.copies import (
    KEPT,
    ORIGIN,
    all_at_once,
    copy_of,
    delete_unused,
    listed_files,
    local_folder,
    passing_folder,
    version_of,
)
from cowclip_merlin.errors import InputError


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

    all_at_once(put, [name for name in found if name != marker])
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


def check_free(address: str, marker: str, *, replace: bool, remedy: str) -> None:
    """Check before long work that a folder can be written at an address.

    Args:
        address: of the folder.
        marker: file that a folder of this kind has.
        replace: whether such a folder may be there.
        remedy: for the message if one is there that may not.

    Raises:
        InputError: if there are files that may not be replaced, or nothing can be written there.
    """
    listed = listed_files(address) if Address(address).exists() else {}
    if listed and not replace:
        raise InputError(f"{address}: already exists; {remedy}")
    if listed and marker not in listed:
        raise InputError(f"{address}: has no {marker}, so it is not replaced; use another `out`")
    check_reachable(f"{address.rstrip('/')}/.cowclip-writable")


def check_reachable(address: str) -> None:
    """Write a file, and remove it.

    Raises:
        InputError: if that cannot be.
    """
    with reaching(address):
        files, path = file_system(address)
        files.pipe_file(path, b"-")
        files.rm_file(path)


@contextmanager
def uploaded_folder(address: str, marker: str, *, begun: bool = False) -> Iterator[Path]:
    """Yield the path of a folder to make; upload it when the block ends, if it has its marker.

    So does a block that fails, such as a training that stops: its folder may be of use. A copy in
    which nothing has changed is not uploaded.

    Args:
        address: where the folder will be.
        marker: file that the folder has when it is whole.
        begun: begin with a copy of the folder that is there.

    Raises:
        InputError: if it cannot be uploaded, or another process has written there since the copy
            was made; the message tells where the folder is.
    """
    with passing_folder() as work:
        (work / ORIGIN).write_text(address, encoding="utf-8")
        folder, there, before = work / Address(address).name, None, None
        try:
            if begun:
                there = version_of(listed_files(address))
                shutil.copytree(local_folder(address, marker), folder)
            before = _times(folder)
            with _named(folder, address):
                yield folder
        finally:
            if before is not None and (folder / marker).exists() and _times(folder) != before:
                _upload_or_keep(folder, address, marker, there)


@contextmanager
def output_folder(
    out: str | Path | Address, marker: str, *, resume: bool, what: str
) -> Iterator[Path]:
    """Yield the path of a folder for output that may be at an address; see `uploaded_folder`.

    Args:
        out: the folder. One at an address must not be there yet, unless `resume`.
        marker: file that the folder has when it is whole.
        resume: go on with the folder that is there.
        what: is written, for messages.

    Raises:
        InputError: if the address has files, cannot be written, or changes meanwhile.
    """
    if not is_address(out):
        yield Path(out)
        return
    if not resume:
        remedy = f"use `resume` to go on with the {what} there, or another `out`"
        check_free(str(out), marker, replace=False, remedy=remedy)
    with uploaded_folder(str(out), marker, begun=resume) as folder:
        yield folder


def _times(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the size and the time of the last change of each file."""
    files = [(file, file.stat()) for file in folder.rglob("*") if file.is_file()]
    return {file: (about.st_size, about.st_mtime_ns) for file, about in files}


def _upload_or_keep(folder: Path, address: str, marker: str, there: str | None) -> None:
    """Upload a folder, if the files at its address still have the version `there`, or keep it."""
    try:
        if there is not None and version_of(listed_files(address)) != there:
            raise InputError(f"{address}: another process has written there; use another `out`")
        upload_folder(folder, address, marker)
    except InputError as error:
        kept = folder.parent.with_name(f"{KEPT}{folder.parent.name}")
        folder.parent.rename(kept)
        raise InputError(f"{error} (the folder is in {kept / folder.name})") from error
    copy = copy_of(address, listed_files(address))  # no command has to copy it again
    delete_unused(copy)
    with suppress(OSError):
        folder.parent.rename(copy.parent)


@contextmanager
def _named(path: Path, address: str) -> Iterator[None]:
    """Name the address in errors, not the local path."""
    try:
        yield
    except InputError as error:
        if str(path) not in str(error):
            raise
        raise type(error)(str(error).replace(str(path), address)) from error


@contextmanager
def uploaded_file(address: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield the path of a file to write; upload it if the block succeeds.

    Raises:
        InputError: if the file exists and `overwrite` is false, or it cannot be uploaded.
    """
    target = Address(address)
    if target.exists() and not overwrite:
        raise InputError(f"{address}: already exists; use `overwrite` to replace it")
    check_reachable(f"{address}.writable")
    with passing_folder() as work:
        with _named(work / target.name, address):
            yield work / target.name
        upload_file(work / target.name, address)
