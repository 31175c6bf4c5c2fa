"""Snapshots of a training: arrays and JSON in a numbered folder, complete or not there.

A snapshot is written beside its name, flushed to the disk, and then renamed. So whatever kills
the process, the newest complete snapshot stays. A manifest has the SHA-256 of each file.

    FOLDER/40/manifest.json
    FOLDER/40/table0.w.bin
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cowclip_merlin.addresses import (
    Address,
    FilePath,
    is_address,
    listed_files,
    passing_copy,
    path_of,
    remove_folder,
    upload_folder,
)
from cowclip_merlin.errors import InputError
from cowclip_merlin.system import files
from cowclip_merlin.types import Array, Json, JsonObject

KEEP = 2
FORMAT = 1
MANIFEST = "manifest.json"
_AT_ONCE = 1 << 24  # bytes that are hashed and written together


class Snapshot(NamedTuple):
    """What was saved.

    Attributes:
        number: of the snapshot, which orders them.
        arrays: by name.
        extra: JSON, such as the position in the log.
    """

    number: int
    arrays: dict[str, Array]
    extra: Json


def save_snapshot(
    folder: Path | str, number: int, arrays: Mapping[str, Array], extra: Json, *, keep: int = KEEP
) -> Path:
    """Write a snapshot, and remove all but the newest few.

    Args:
        folder: of the snapshots; made if it is not there. One process at a time may write there.
        number: above that of every snapshot there, such as the step.
        arrays: by name, which is part of a file name.
        extra: JSON.
        keep: complete snapshots that stay, at least 1.

    Returns:
        The folder of the snapshot.

    Raises:
        InputError: the number is not above that of every snapshot there.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    newest = max(numbers(folder), default=-1)
    if number <= newest:
        raise InputError(f"{folder}: snapshot {newest} is there; {number} is not above it")
    _remove_unfinished(folder)
    with files.atomic_folder(folder / str(number)) as made:
        made.mkdir()
        _write(made, arrays, extra)
    _flush_folder(folder)
    for old in sorted(numbers(folder))[: -max(keep, 1)]:
        _remove(folder / str(old))
    return folder / str(number)


def numbers(folder: str | FilePath) -> list[int]:
    """Numbers of the complete snapshots in a folder or at an address, in any order."""
    if is_address(folder):
        return [int(name) for name in _parents(str(folder), MANIFEST) if re.fullmatch(r"\d+", name)]
    found = Path(folder).iterdir() if Path(folder).is_dir() else ()
    return [int(path.name) for path in found if re.fullmatch(r"\d+", path.name)]


def times(folder: Path | str) -> dict[int, float]:
    """Return when the complete snapshots were written, in order: number -> seconds since 1970."""
    found = {}
    for number in sorted(numbers(folder)):
        with suppress(FileNotFoundError):  # removed at this moment
            found[number] = (Path(folder) / str(number)).stat().st_mtime
    return found


def set_aside(folder: Path | str, number: int, why: str) -> None:
    """Rename a snapshot to WHY-NUMBER, so that it is none any more; a number follows if needed."""
    snapshot, name = Path(folder) / str(number), f"{why}-{number}"
    others = (f"{name}-{i}" for i in itertools.count(2))
    while snapshot.with_name(name).exists():
        name = next(others)
    snapshot.rename(snapshot.with_name(name))


def load_snapshot(
    folder: str | FilePath,
    number: int | None = None,
    *,
    wanted: Callable[[str], bool] | None = None,
) -> Snapshot:
    """Read a snapshot and check every file that is read.

    Args:
        folder: of the snapshots, or their address.
        number: of the snapshot; the newest if it is None.
        wanted: tells by its name whether an array is read; None reads all.

    Raises:
        InputError: if there is no snapshot, or a file is missing or damaged.
    """
    folder = path_of(folder)
    if number is None:
        number = max(numbers(folder), default=-1)
        if number < 0:
            raise InputError(f"{folder}: no snapshot; check the folder")
    made = folder / str(number)
    if isinstance(made, Path):
        return _load(made, number, wanted)
    named = wanted or (lambda name: True)
    with passing_copy(str(made), MANIFEST, lambda file: named(file.removesuffix(".bin"))) as copy:
        return _load(copy, number, wanted)


def _load(made: Path, number: int, wanted: Callable[[str], bool] | None) -> Snapshot:
    manifest = files.read_json(made / MANIFEST)
    _refuse_damaged(made / MANIFEST, manifest)
    known = {k: x for k, x in manifest["files"].items() if wanted is None or wanted(k)}
    arrays = {name: _read(made, name, about) for name, about in known.items()}
    return Snapshot(number, arrays, manifest["extra"])


def copy_snapshot(folder: Path, number: int, address: str, *, keep: int = KEEP) -> None:
    """Copy a snapshot to an address unless it is there, and remove all but the newest few there.

    Snapshots of higher numbers are removed, too: the run went back to this one.

    Args:
        folder: of the snapshots.
        number: of the newest one.
        address: of the copies, as `folder`.
        keep: complete snapshots that stay.

    Raises:
        InputError: if the address cannot be written.
    """
    there, made = Address(address), folder / str(number)
    copy = there / str(number)
    if number not in numbers(there) or _text(copy / MANIFEST) != _text(made / MANIFEST):
        upload_folder(made, str(copy), MANIFEST)
    known = sorted(each for each in numbers(there) if each <= number)
    kept = {str(each) for each in known[-max(keep, 1) :]}
    for name in _parents(address) - kept:
        remove_folder(str(there / name), MANIFEST)


def _text(file: FilePath) -> str:
    return file.read_text(encoding="utf-8")


def _parents(address: str, file: str | None = None) -> set[str]:
    """Return the folders at an address that hold a file of this name, or any file."""
    found = (name.partition("/") for name in listed_files(address))
    return {folder for folder, _, rest in found if rest and file in (None, rest)}


class SnapshotWriter:
    """Copies a state at once, and writes it to the disk in a thread.

    Args:
        folder: of the snapshots.
        keep: complete snapshots that stay.
        copy: is called with the number of each snapshot, to copy it; None for none.

    Attributes:
        problem: why the last snapshot could not be copied; None if it was.
    """

    def __init__(
        self, folder: Path, *, keep: int = KEEP, copy: Callable[[int], None] | None = None
    ) -> None:
        self._folder, self._keep, self._copy = folder, keep, copy
        self.problem: InputError | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="snapshot")
        self._writing: Future[Path] | None = None

    @property
    def busy(self) -> bool:
        """Whether a snapshot was begun that `finished` has not returned."""
        return self._writing is not None

    @property
    def is_writing(self) -> bool:
        """Whether a snapshot was begun that is neither on the disk nor failed."""
        return self._writing is not None and not self._writing.done()

    def begin(self, number: int, arrays: Mapping[str, Array], extra: Json) -> None:
        """Begin to write a snapshot; `finished` tells when it is on the disk.

        Args:
            number: of the snapshot.
            arrays: by name; they may change when this returns.
            extra: JSON.
        """
        copies = {name: np.array(x) for name, x in arrays.items()}
        self._writing = self._threads.submit(self._save, number, copies, extra)

    def _save(self, number: int, arrays: Mapping[str, Array], extra: Json) -> Path:
        made = save_snapshot(self._folder, number, arrays, extra, keep=self._keep)
        self.problem = None
        if self._copy is not None:
            try:
                self._copy(number)
            except InputError as error:  # the one on the disk is whole
                self.problem = error
        return made

    def finished(self, *, wait: bool = False) -> int | None:
        """Return the number of a snapshot that is on the disk since the last call, or None.

        Raises:
            InputError, OSError: it could not be written.
        """
        if self._writing is None or not (wait or self._writing.done()):
            return None
        writing, self._writing = self._writing, None
        return int(writing.result().name)

    def close(self) -> None:
        """End the thread when it has written what it began."""
        self._threads.shutdown(wait=True)


def part_of(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays whose names begin with a prefix, by the rest of their names.

    >>> part_of({"trainer.loss": 1, "repeats.keys": 2}, "trainer.")
    {'loss': 1}
    """
    return {k.removeprefix(prefix): x for k, x in arrays.items() if k.startswith(prefix)}


def _write(made: Path, arrays: Mapping[str, Array], extra: Json) -> None:
    known = {name: _write_array(made / f"{name}.bin", x) for name, x in arrays.items()}
    manifest = {"format": FORMAT, "files": known, "extra": extra}
    manifest["sha256"] = _digest_of(manifest)
    _write_file(made / MANIFEST, [json.dumps(manifest, indent=2).encode()])
    _flush_folder(made)


def _write_array(file: Path, x: Array) -> JsonObject:
    """Write an array; its dtype, shape and digest."""
    shape, x = list(x.shape), np.ascontiguousarray(x)  # which makes a number an array
    data = memoryview(x.reshape(-1).view(np.uint8))
    digest = _write_file(file, (data[i : i + _AT_ONCE] for i in range(0, len(data), _AT_ONCE)))
    return {"dtype": x.dtype.str, "shape": shape, "sha256": digest}


def _write_file(file: Path, parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    with open(file, "wb") as stream:
        for part in parts:
            digest.update(part)
            stream.write(part)
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest()


def _read(made: Path, name: str, known: Mapping[str, Json]) -> Array:
    x, digest = np.empty(known["shape"], known["dtype"]), hashlib.sha256()
    file, data = made / f"{name}.bin", memoryview(x.reshape(-1).view(np.uint8))
    try:
        with open(file, "rb") as stream:
            size = 0
            while size < len(data) and (read := stream.readinto(data[size : size + _AT_ONCE])):
                digest.update(data[size : size + read])
                size += read
            whole = size == len(data) and not stream.read(1)
    except FileNotFoundError:
        raise InputError(f"{file}: no such file; use another snapshot") from None
    if not whole or digest.hexdigest() != known["sha256"]:
        raise InputError(f"{file}: damaged (its SHA-256 is another); use another snapshot")
    return x


def _refuse_damaged(file: Path, manifest: Json) -> None:
    body = {k: v for k, v in manifest.items() if k != "sha256"} if type(manifest) is dict else {}
    if body.get("format") not in (None, FORMAT):
        raise InputError(f"{file}: of format {body['format']}, which this version cannot read")
    if not body or manifest.get("sha256") != _digest_of(body):
        raise InputError(f"{file}: damaged (its SHA-256 is another); use another snapshot")


def _digest_of(value: Json) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _flush_folder(folder: Path) -> None:
    target = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(target)
    finally:
        os.close(target)


def _remove(snapshot: Path) -> None:
    """Remove a snapshot: first its name, so that a part of it never passes for the whole."""
    hidden = snapshot.with_name(f".{snapshot.name}.removed")
    snapshot.rename(hidden)
    shutil.rmtree(hidden)


def _remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left: snapshots half written or half removed."""
    for left in folder.glob(".*.removed"):
        if re.fullmatch(r"\.\d+\.removed", left.name):
            shutil.rmtree(left)
    for left in folder.glob(".*.tmp"):
        if re.fullmatch(r"\.\d+\.\w+\.tmp", left.name):
            files.clear_leftovers(folder / left.name.split(".")[1])
