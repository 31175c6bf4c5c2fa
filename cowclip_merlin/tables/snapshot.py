"""Snapshots of a training: arrays and JSON in a numbered folder, complete or not there.

A snapshot is written beside its name, flushed to the disk, and then renamed. So whatever kills
the process, the newest complete snapshot stays. A manifest has the SHA-256 of each file.

    FOLDER/40/manifest.json
    FOLDER/40/table0.w.bin

Several workers may each have a part of the tables. Then each writes its part, worker 0 the last
one, so a snapshot is complete when that is there. Any number of workers reads all parts.

    FOLDER/40                   of worker 0; `extra` names the number of workers
    FOLDER/workers/1-of-2/40    of worker 1
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

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
WORKERS = "workers"
"""Folder of the parts, and the name in `extra` of the number of workers."""

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


class Divided(Protocol):
    """The arrays of which each worker has a part."""

    def has(self, name: str) -> bool:
        """Whether an array is one of them."""

    def joined(
        self, parts: Iterator[dict[str, Array]], count: int, rank: int, size: int
    ) -> dict[str, Array]:
        """Return the part of one of `size` workers, from those of `count` workers."""


def save_snapshot(
    folder: Path | str,
    number: int,
    arrays: Mapping[str, Array],
    extra: Json,
    *,
    keep: int = KEEP,
    written: Callable[[], None] = lambda: None,
) -> Path:
    """Write a snapshot, and remove all but the newest few.

    Args:
        folder: of the snapshots; made if it is not there. One process at a time may write there.
        number: above that of every snapshot there, such as the step.
        arrays: by name, which is part of a file name.
        extra: JSON.
        keep: complete snapshots that stay, at least 1.
        written: is called when the arrays are in files, before the snapshot gets its number.

    Returns:
        The folder of the snapshot.

    Raises:
        InputError: the number is not above that of every snapshot there.
        OSError: the disk is full, or not writable.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    newest = max(numbers(folder), default=-1)
    if number <= newest:
        raise InputError(f"{folder}: snapshot {newest} is there; {number} is not above it")
    _remove_unfinished(folder)
    with _new_snapshot(folder / str(number)) as made:
        _write(made, arrays, extra)
        written()
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


def part_folder(folder: FilePath, rank: int, size: int) -> FilePath:
    """Return the folder of the parts of one worker."""
    return folder / WORKERS / f"{rank}-of-{size}" if rank else folder


def number_of_parts(extra: Json) -> int:
    """Return how many workers have written a snapshot, by its `extra`."""
    return extra.get(WORKERS, 1) if isinstance(extra, dict) else 1


def _folders(folder: Path) -> list[Path]:
    """Return the folders of all parts, that of worker 0 last."""
    return [*(folder / WORKERS).glob("*-of-*"), folder]


def set_aside(folder: Path, number: int, why: str) -> None:
    """Rename a snapshot and its parts to WHY-NUMBER, so that it is none any more.

    Another number follows if such a folder is there.
    """
    for part in _folders(folder):
        if number in numbers(part):
            name = f"{why}-{number}"
            others = (f"{name}-{i}" for i in itertools.count(2))
            while (part / name).exists():
                name = next(others)
            (part / str(number)).rename(part / name)


def remove_parts(folder: Path, which: Callable[[int], bool]) -> None:
    """Remove parts of other workers than worker 0 by their numbers."""
    for part in _folders(folder)[:-1]:
        for number in filter(which, numbers(part)):
            shutil.rmtree(part / str(number))


def remove_snapshots(folder: Path, which: Callable[[int], bool]) -> None:
    """Remove snapshots by their numbers, and then their parts."""
    for number in filter(which, numbers(folder)):
        _remove(folder / str(number))
    remove_parts(folder, which)


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


def load_part(
    folder: str | FilePath,
    number: int,
    divided: Divided,
    *,
    rank: int = 0,
    size: int = 1,
    wanted: Callable[[str], bool] | None = None,
) -> Snapshot:
    """Read what one worker needs of a snapshot, whatever number of workers has written it.

    Args:
        folder: of the snapshots, or their address.
        number: of the snapshot.
        divided: the arrays of which each worker has a part.
        rank: number of the worker.
        size: number of workers; a single one has all rows.
        wanted: tells by its name whether an array is read; None reads all.

    Raises:
        InputError: if a part is missing or damaged.
    """
    every = wanted or (lambda name: True)
    first = load_snapshot(folder, number, wanted=lambda x: every(x) and not divided.has(x))
    count = number_of_parts(first.extra)

    def part(other: int) -> dict[str, Array]:
        where = part_folder(path_of(folder), other, count)
        return load_snapshot(where, number, wanted=lambda x: every(x) and divided.has(x)).arrays

    own = (
        part(rank) if count == size else divided.joined(map(part, range(count)), count, rank, size)
    )
    return first._replace(arrays=first.arrays | own)


def load_newest(
    known: Collection[int],
    load: Callable[[int], Snapshot],
    damaged: Callable[[int, InputError], None],
) -> Snapshot:
    """Load the newest snapshot that is not damaged.

    Args:
        known: numbers of the snapshots, at least one.
        load: loads the one of a number.
        damaged: is called with the number of the one before, and the error of a damaged one.

    Raises:
        InputError: all are damaged; the error is that of the oldest one.
    """
    number, *older = sorted(known, reverse=True)
    for other in older:
        try:
            return load(number)
        except InputError as error:
            damaged(other, error)
            number = other
    return load(number)


def go_on_from(folder: Path, number: int) -> None:
    """Free the numbers after a snapshot: damaged ones are set aside, parts of no whole one go."""
    for other in numbers(folder):
        if other > number:
            set_aside(folder, other, "damaged")
    remove_parts(folder, lambda known: known > number)


def link_snapshot(folder: Path, number: int, target: Path, as_number: int) -> None:
    """Copy a snapshot and its parts to another folder, by hard links if the disk has them.

    Its files never change, so both share them. As it is written, worker 0's part comes last.
    """
    count = number_of_parts(load_snapshot(folder, number, wanted=lambda name: False).extra)
    for rank in reversed(range(count)):
        source, copy = (part_folder(each, rank, count) for each in (folder, target))
        copy.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(copy)
        if (copy / str(as_number)).exists():  # a part that a killed process left
            _remove(copy / str(as_number))
        with _new_snapshot(copy / str(as_number)) as made:
            for file in (source / str(number)).iterdir():
                _link(file, made / file.name)


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:  # a disk without hard links
        with open(file, "rb") as stream:
            _write_file(target, iter(lambda: stream.read(_AT_ONCE), b""))


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


def part_of(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays whose names begin with a prefix, by the rest of their names.

    >>> part_of({"trainer.loss": 1, "repeats.keys": 2}, "trainer.")
    {'loss': 1}
    """
    return {k.removeprefix(prefix): x for k, x in arrays.items() if k.startswith(prefix)}


@contextmanager
def _new_snapshot(snapshot: Path) -> Iterator[Path]:
    """Yield a folder to write; then flush it to the disk, and give it the name of the snapshot."""
    try:
        with files.atomic_folder(snapshot) as made:
            made.mkdir()
            yield made
            _flush_folder(made)
    except OSError as error:  # that of a full disk names no file, and others one that is gone
        raise OSError(error.errno, error.strerror, str(snapshot)) from error
    _flush_folder(snapshot.parent)


def _write(made: Path, arrays: Mapping[str, Array], extra: Json) -> None:
    known = {name: _write_array(made / f"{name}.bin", x) for name, x in arrays.items()}
    manifest = {"format": FORMAT, "files": known, "extra": extra}
    manifest["sha256"] = _digest_of(manifest)
    _write_file(made / MANIFEST, [json.dumps(manifest, indent=2).encode()])


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
