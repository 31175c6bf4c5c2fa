"""Snapshots of several workers: each writes its part, and any number of workers reads them.

    FOLDER/40                   of worker 0; `extra` names the number of workers
    FOLDER/workers/1-of-2/40    of worker 1, written before

The part of worker 0 is written last, so a snapshot is complete when it is there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event

from cowclip_merlin.addresses import FilePath, path_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.growing_shard import merged, rows_of
from cowclip_merlin.tables.snapshot import (
    Snapshot,
    SnapshotWriter,
    load_snapshot,
    numbers,
    part_of,
    set_aside,
)
from cowclip_merlin.types import Array, Json

WORKERS = "workers"
"""Folder of the parts, and the name in `extra` of the number of workers."""

_PAUSE = 0.02  # seconds between two looks for parts


def part_folder(folder: FilePath, rank: int, size: int) -> FilePath:
    """Return the folder of the parts of one worker."""
    return folder / WORKERS / f"{rank}-of-{size}" if rank else folder


def number_of_parts(extra: Json) -> int:
    """Return how many workers have written a snapshot, by its `extra`."""
    return extra.get(WORKERS, 1) if isinstance(extra, dict) else 1


def load_whole(
    folder: str | FilePath,
    number: int,
    table: str,
    *,
    wanted: Callable[[str], bool] | None = None,
) -> Snapshot:
    """Read a snapshot, with the rows of all workers.

    Args:
        folder: of the snapshots, or their address.
        number: of the snapshot.
        table: what the names of the arrays of the growing table begin with.
        wanted: tells by its name whether an array is read; None reads all.

    Raises:
        InputError: if a part is missing or damaged.
    """
    first = load_snapshot(folder, number, wanted=wanted)
    if number_of_parts(first.extra) == 1:
        return first
    return _with_table(first, _read_parts(folder, first, table, wanted), table, rank=0, size=1)


def load_own(folder: Path, number: int, table: str, rank: int, size: int) -> Snapshot:
    """Read a snapshot with the rows of one worker; arguments as for `load_whole`.

    Args:
        folder: of the snapshots.
        number: of the snapshot.
        table: what the names of the arrays of the growing table begin with.
        rank: number of the worker.
        size: number of workers.

    Raises:
        InputError: if a part is missing or damaged.
    """
    first = load_snapshot(folder, number, wanted=lambda name: not name.startswith(table))
    if number_of_parts(first.extra) != size:
        parts = _read_parts(folder, first, table, None)
        return _with_table(first, parts, table, rank=rank, size=size)
    of_table = lambda name: name.startswith(table)  # noqa: E731
    own = load_snapshot(part_folder(folder, rank, size), number, wanted=of_table)
    return first._replace(arrays=first.arrays | own.arrays)


def _read_parts(
    folder: str | FilePath,
    first: Snapshot,
    table: str,
    wanted: Callable[[str], bool] | None,
) -> Iterator[dict[str, Array]]:
    """Yield the state of each worker's table."""
    size = number_of_parts(first.extra)

    def of_table(name: str) -> bool:
        return name.startswith(table) and (wanted is None or wanted(name))

    for rank in range(size):
        where = part_folder(path_of(folder), rank, size)
        yield part_of(load_snapshot(where, first.number, wanted=of_table).arrays, table)


def _with_table(
    first: Snapshot, parts: Iterator[dict[str, Array]], table: str, *, rank: int, size: int
) -> Snapshot:
    state = merged([rows_of(part, rank, size) for part in parts], first=rank == 0)
    others = {k: x for k, x in first.arrays.items() if not k.startswith(table)}
    return first._replace(arrays=others | {f"{table}{name}": x for name, x in state.items()})


class PartsWriter(SnapshotWriter):
    """Writes the part of worker 0 when all others have written theirs.

    Args:
        folder: of the snapshots.
        size: number of workers.
        keep: complete snapshots that stay.
    """

    def __init__(self, folder: Path, size: int, *, keep: int) -> None:
        super().__init__(folder, keep=keep)
        self._parts = [part_folder(folder, rank, size) for rank in range(1, size)]
        self._closed = Event()

    def _save(self, number: int, arrays: Mapping[str, Array], extra: Json) -> Path:
        while not all(number in numbers(part) for part in self._parts):
            if self._closed.wait(_PAUSE):
                raise InputError(f"{self._folder}: another worker did not write snapshot {number}")
        made = super()._save(number, arrays, extra)
        remove_parts(self._folder, lambda known: known < min(numbers(self._folder)))
        return made

    def close(self) -> None:
        """End the thread when it has written what it began, or waits for other workers."""
        self._closed.set()
        super().close()


def remove_parts(folder: Path, which: Callable[[int], bool]) -> None:
    """Remove parts of other workers than worker 0 by their numbers."""
    for part in (folder / WORKERS).glob("*-of-*"):
        for number in filter(which, numbers(part)):
            shutil.rmtree(part / str(number))


def set_parts_aside(folder: Path, number: int, why: str) -> None:
    """Rename a snapshot and its parts, as `set_aside`."""
    for part in (*(folder / WORKERS).glob("*-of-*"), folder):
        if number in numbers(part):
            set_aside(part, number, why)
