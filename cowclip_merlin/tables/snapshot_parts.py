"""Snapshots of several workers: each writes its part, and any number of workers reads them.

    FOLDER/40                   of worker 0; `extra` names the number of workers
    FOLDER/workers/1-of-2/40    of worker 1, written before

The part of worker 0 is written last, so a snapshot is complete when it is there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import NamedTuple

import numpy as np

from cowclip_merlin.addresses import FilePath, path_of
from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import batch_loops, id_map
from cowclip_merlin.tables.id_map import NO_FIELD
from cowclip_merlin.tables.snapshot import (
    Snapshot,
    SnapshotWriter,
    load_snapshot,
    numbers,
    part_of,
    set_aside,
)
from cowclip_merlin.types import Array, Json


class Pairs(NamedTuple):
    """Pairs of field and id, int64 [n] each.

    Attributes:
        fields: index of the field.
        ids: the ids.
        counts: occurrences in the batch.
        times: latest event time of these occurrences.
    """

    fields: Array
    ids: Array
    counts: Array
    times: Array

    def take(self, which: Array | slice) -> Pairs:
        """Return some of the pairs."""
        return Pairs(*(column[which] for column in self))

    def packed(self) -> Array:
        """Return the pairs as few numbers, int64 [n, 3]."""
        return np.stack([self.ids, self.fields << 32 | self.counts, self.times], axis=1)

    @classmethod
    def unpacked(cls, numbers: Array) -> Pairs:
        """Return the pairs of `packed`."""
        ids, both, times = np.ascontiguousarray(numbers.T)
        return cls(both >> 32, ids, both & (2**32 - 1), times)


def distinct_pairs(ids: Ids, times: Array) -> tuple[Pairs, Array]:
    """List the distinct pairs of a batch; and the place of each occurrence among them, int32 [m].

    Args:
        ids: with one column for each field.
        times: event times, integer [b].

    >>> pairs, place = distinct_pairs(Ids(np.array([[7, 7], [7, 8]])), np.array([3, 5]))
    >>> [column.tolist() for column in pairs], place.tolist()
    ([[0, 1, 1], [7, 7, 8], [2, 1, 1], [5, 3, 5]], [0, 1, 0, 2])
    """
    fields = batch_loops.fields_of(ids).astype(np.int64)
    seen = np.repeat(times, batch_loops.ids_of_events(ids))
    values = np.ascontiguousarray(ids.values, np.int64).reshape(-1)
    columns = tuple(np.empty((4, len(values)), np.int64))
    place = np.empty(len(values), np.int32)
    cells = id_map.empty_cells(id_map.cells_for(len(values)))
    found = batch_loops.list_pairs(
        cells, fields, values, np.ascontiguousarray(seen, np.int64), columns, place
    )
    return Pairs(*columns).take(slice(found)), place


def owners(fields: Array, ids: Array, size: int) -> Array:
    """Return the worker, of so many, that has the row of each id, int64 [n].

    >>> owners(np.array([0, 0, 1]), np.array([7, 8, 7]), 1).tolist()
    [0, 0, 0]
    """
    found = np.empty(len(ids), np.int64)
    fields, ids = np.ascontiguousarray(fields, np.int64), np.ascontiguousarray(ids, np.int64)
    batch_loops.owners_of_ids(fields, ids, size, found)
    return found


WORKERS = "workers"
"""Folder of the parts, and the name in `extra` of the number of workers."""

_PAUSE = 0.02  # seconds between two looks for parts
_BY_ROW = ("ids", "fields", "last_seen")


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


def rows_of(state: Mapping[str, Array], rank: int, size: int) -> dict[str, Array]:
    """Return the state of a growing table with only the rows that one worker has.

    Changes for servers are left out: after `restore`, all rows count as changed.
    """
    fields, ids = state["fields"], state["ids"]
    own = np.flatnonzero(fields != NO_FIELD)
    own = own[owners(fields[own], ids[own], size) == rank]
    reserved = np.arange(len(fields)) < _reserved(state)
    rows = np.concatenate([np.flatnonzero(reserved), own[~reserved[own]]])
    kept = {name: x for name, x in state.items() if not name.startswith("changes")}
    kept |= {name: x[rows] for name, x in kept.items() if _is_by_row(name)}
    return kept | {"free": state["free"][:0]}


def merged(states: Sequence[Mapping[str, Array]], *, first: bool = True) -> dict[str, Array]:
    """Join the states of tables that have different ids.

    Counters are the largest of all: a count may be high, but never low.

    Args:
        states: of `rows_of`.
        first: whether totals are those of all tables; if not, totals but that of events are 0.
    """
    reserved, whole = _reserved(states[0]), dict(states[0])
    for name in whole:
        parts = [state[name] for state in states]
        if _is_by_row(name):
            whole[name] = np.concatenate([parts[0], *(x[reserved:] for x in parts[1:])])
        elif name == "counters":
            whole[name] = np.maximum.reduce(parts)
        elif name == "totals":
            whole[name] = np.concatenate([parts[0][:1], sum(x[1:] for x in parts) * first])
        elif name == "numbers":  # searches begin again at the first row
            clock = max(x[1] for x in parts)
            whole[name] = np.array([reserved, clock, reserved, reserved, 0, 0], np.int64)
    return whole


def _reserved(state: Mapping[str, Array]) -> int:
    """The rows of absent ids, which all parts have: those before the first one of an id."""
    return int(state["numbers"][0])


def _is_by_row(name: str) -> bool:
    return name in _BY_ROW or name.startswith("table")


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
