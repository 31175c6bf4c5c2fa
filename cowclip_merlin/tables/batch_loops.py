"""The compiled loops that turn a batch of ids, or its distinct pairs, into rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cowclip_merlin.batch import Ids
from cowclip_merlin.kernels.compiled import AHEAD, compiled
from cowclip_merlin.tables import admission
from cowclip_merlin.tables.admission import AdmissionState
from cowclip_merlin.tables.id_map import (
    ABSENT,
    GOLDEN,
    IdMap,
    RowOwners,
    find_cell,
    hash_id,
    mix,
    number_in,
    prefetch_cell,
    remove_cell,
    take_row,
    too_full,
    write_cell,
)
from cowclip_merlin.types import Array

NEW = 1 << 31  # numbers in the index from here on: place in `NewIds` of an id without a row yet
REFUSED = -(1 << 31)  # a row's number for now: the id is not admitted


class Occurrences(NamedTuple):
    """Occurrences of ids, one after the other, which get their rows.

    Attributes:
        fields: index of each id's field, int32 [m].
        ids: int64 [m].
        times: event times, uint32 [m].
        counts: occurrences that each one stands for, int64 [m]; empty: one.
        ends: for each event, the first occurrence after it, int64 [b]; empty: no event is counted.
        rows: int32 [m]; meanwhile below 0 for ids that have no row yet.
        place: occurrence and event where the first pass goes on, int64 [2].
    """

    fields: Array
    ids: Array
    times: Array
    counts: Array
    ends: Array
    rows: Array
    place: Array


_NONE = np.empty(0, np.int64)


def of_batch(ids: Ids, now: Array) -> Occurrences:
    """The occurrences of a batch, without rows.

    Args:
        ids: int64.
        now: event times, uint32 [b].
    """
    sizes = ids_of_events(ids)
    found = of_pairs(fields_of(ids), ids.values.reshape(-1), _NONE, np.repeat(now, sizes))
    return found._replace(ends=np.cumsum(sizes, dtype=np.int64))


def of_pairs(fields: Array, ids: Array, counts: Array, times: Array) -> Occurrences:
    """The occurrences that pairs of field and id stand for, without rows and without events.

    Args:
        fields: index of each id's field, int32 [n].
        ids: int64 [n]. A pair may occur several times.
        counts: occurrences of each pair, int64 [n].
        times: event times, uint32 [n].
    """
    rows = np.empty(len(ids), np.int32)
    return Occurrences(fields, ids, times, counts, _NONE, rows, np.zeros(2, np.int64))


def fields_of(ids: Ids) -> Array:
    """Index of the field of each id of a batch, int32 [m]."""
    fields = np.tile(np.arange(ids.num_fields, dtype=np.int32), ids.num_rows)
    return fields if ids.lengths is None else fields.repeat(ids.lengths.reshape(-1))


def ids_of_events(ids: Ids) -> Array:
    """Number of ids of each event, int64 [b]."""
    if ids.lengths is None:
        return np.full(ids.num_rows, ids.num_fields)
    return ids.lengths.sum(axis=1, dtype=np.int64)


class NewIds(NamedTuple):
    """Distinct ids of a batch that get a row.

    Attributes:
        fields: index of each id's field, int64 [b * F], of which the first `number` are written.
        ids: int64, likewise.
        seen: event time of the last occurrence in the batch, uint32, likewise.
        number: of ids, int64 [1].
    """

    fields: Array
    ids: Array
    seen: Array
    number: Array


def look_up(id_map: IdMap, ids: Ids) -> Array:
    """Rows of the ids, int32 of the shape of their values.

    Where an id has no row, it is that of the field's absent ids.
    """
    if ids.lengths is None:
        rows = np.empty(ids.values.shape, np.int32)
        _look_up(id_map.cells, ids.values, rows)
        return rows
    fields = fields_of(ids)
    rows = id_map.find(fields, ids.values)
    return np.where(rows < 0, fields, rows)


@compiled
def _look_up(cells: Array, ids: Array, rows: Array) -> None:
    num_fields, flat_ids, flat_rows = ids.shape[1], ids.reshape(-1), rows.reshape(-1)
    field, ahead = 0, AHEAD % num_fields
    for i in range(ids.size):
        if i + AHEAD < ids.size:
            prefetch_cell(cells, hash_id(ahead, flat_ids[i + AHEAD]))
        row = number_in(cells, find_cell(cells, hash_id(field, flat_ids[i]), field, flat_ids[i]))
        flat_rows[i] = field if row == ABSENT else row
        field = field + 1 if field + 1 < num_fields else 0
        ahead = ahead + 1 if ahead + 1 < num_fields else 0


def collect_new(
    id_map: IdMap, state: AdmissionState, last_seen: Array, batch: Occurrences
) -> NewIds:
    """Find the rows of a batch, and collect the ids that get one; see `count_and_admit`."""
    n, count = len(batch.ids), len(id_map)
    fields, ids = np.empty((2, n), np.int64)
    new = NewIds(fields, ids, np.empty(n, np.uint32), np.zeros(1, np.int64))
    while not count_and_admit(id_map.cells, count, batch, last_seen, state, new):
        id_map.grow_index(count + int(new.number[0]) + 1)
    return new


@compiled
def count_and_admit(
    cells: Array,
    count: int,
    batch: Occurrences,
    last_seen: Array,
    state: AdmissionState,
    new: NewIds,
) -> bool:
    """The first pass over a batch: find rows, and collect the ids that get one.

    Args:
        cells: the index; ids that get a row are in it from now on, without their row.
        count: ids in the index that have a row.
        batch: the `Occurrences`, whose rows are written.
        last_seen: uint32 [capacity], brought up to date.
        state: the `AdmissionState`, which counts.
        new: the `NewIds`, written.

    Returns:
        Whether the pass is done; else the index is too full to go on.
    """
    fields, ids, rows, ends = batch.fields, batch.ids, batch.rows, batch.ends
    n, event, several = len(ids), batch.place[1], len(batch.counts) > 0
    for i in range(batch.place[0], n):
        while event < len(ends) and ends[event] <= i:
            event += 1
            admission.end_event(state)
        if i + AHEAD < n:
            prefetch_cell(cells, hash_id(np.int64(fields[i + AHEAD]), ids[i + AHEAD]))
        field, id_, now = np.int64(fields[i]), ids[i], batch.times[i]
        start = hash_id(field, id_)
        found = find_cell(cells, start, field, id_)
        number = number_in(cells, found)
        if number >= NEW:
            new.seen[number - NEW] = max(new.seen[number - NEW], now)
            rows[i] = NEW - 1 - number
        elif number != ABSENT:
            last_seen[number] = max(last_seen[number], now)
            rows[i] = number
        elif too_full(cells, count + new.number[0]):
            batch.place[0], batch.place[1] = i, event
            return False
        else:
            rows[i] = REFUSED
            for _ in range(batch.counts[i] if several else 1):
                if admission.admits(state, start, field, id_):
                    rows[i] = -1 - collect(new, field, id_, now)
                    write_cell(cells, found, field, id_, NEW - 1 - rows[i])
                    break
    for _ in range(event, len(ends)):
        admission.end_event(state)
    return True


@compiled
def collect(new: NewIds, field: int, id_: int, now: int) -> int:
    """Add an id to those that get a row; return its place among them."""
    i = new.number[0]
    new.fields[i], new.ids[i], new.seen[i] = field, id_, now
    new.number[0] += 1
    return i


@compiled
def take_rows(
    cells: Array, owners: RowOwners, new: NewIds, last_seen: Array, new_rows: Array
) -> None:
    """Give the collected ids their rows, int32 [n], which are written to `new_rows`."""
    n = len(new_rows)
    for i in range(n):
        if i + AHEAD < n:
            prefetch_cell(cells, hash_id(new.fields[i + AHEAD], new.ids[i + AHEAD]))
        field, id_ = new.fields[i], new.ids[i]
        row = take_row(owners, field, id_)
        write_cell(cells, find_cell(cells, hash_id(field, id_), field, id_), field, id_, row)
        last_seen[row] = new.seen[i]
        new_rows[i] = row


@compiled
def forget(cells: Array, new: NewIds) -> None:
    """Take the collected ids out of the index again."""
    for i in range(new.number[0]):
        start = hash_id(new.fields[i], new.ids[i])
        remove_cell(cells, find_cell(cells, start, new.fields[i], new.ids[i]))


@compiled
def finish_rows(cells: Array, batch: Occurrences, last_seen: Array, new_rows: Array) -> None:
    """The last pass over a batch: an id admitted at one occurrence has its row at all of them."""
    rows = batch.rows
    for i in range(len(rows)):
        row, field = np.int64(rows[i]), np.int64(batch.fields[i])
        if row == REFUSED and len(new_rows) == 0:
            rows[i] = field
        elif row == REFUSED:
            rows[i] = row_of_refused(cells, batch.ids[i], field, batch.times[i], last_seen)
        elif row < 0:
            rows[i] = new_rows[-1 - row]


@compiled
def row_of_refused(cells: Array, id_: int, field: int, now: int, last_seen: Array) -> int:
    """The row of an id that was refused at first, and may have been admitted later in the batch."""
    number = number_in(cells, find_cell(cells, hash_id(field, id_), field, id_))
    if number == ABSENT:
        return field
    last_seen[number] = max(last_seen[number], now)
    return number


@compiled
def mark(flags: Array, rows: Array, value: bool) -> None:
    """Set the flags of rows; negative numbers are not rows."""
    for row in rows.flat:
        if row >= 0:
            flags[row] = value


@compiled
def list_changed(flags: Array, rows: Array, changed: Array) -> int:
    """Set the flags of rows, write those that had none to `changed`, and return their number."""
    found = 0
    for row in rows.flat:
        if not flags[row]:
            flags[row] = True
            changed[found] = row
            found += 1
    return found


@compiled
def owner_of_id(field: int, id_: int, size: int) -> int:
    """The worker, of so many, that has the row of an id.

    The hash is mixed once more: the ids of one worker must not share bits in its index.
    """
    return np.int64(mix(hash_id(field, id_) + GOLDEN) % np.uint64(size))


@compiled
def owners_of_ids(fields: Array, ids: Array, size: int, owners: Array) -> None:
    """Write the worker of each id, int64 [n]."""
    for i in range(len(ids)):
        owners[i] = owner_of_id(fields[i], ids[i], size)


@compiled
def list_pairs(
    cells: Array,
    fields: Array,
    ids: Array,
    times: Array,
    distinct: tuple[Array, Array, Array, Array],
    place: Array,
) -> int:
    """List the distinct pairs of field and id in the order in which they first occur.

    Args:
        cells: an empty index with space for all.
        fields: of all occurrences, int64 [m].
        ids: of all occurrences, int64 [m].
        times: event times, int64 [m].
        distinct: fields, ids, counts and latest times of the pairs, int64 [m] each; written.
        place: of the pair of each occurrence among the distinct ones, int32 [m]; written.

    Returns:
        The number of distinct pairs.
    """
    to_fields, to_ids, counts, latest = distinct
    found = 0
    for i in range(len(ids)):
        cell = find_cell(cells, hash_id(fields[i], ids[i]), fields[i], ids[i])
        number = number_in(cells, cell)
        if number == ABSENT:
            number = found
            write_cell(cells, cell, fields[i], ids[i], number)
            to_fields[number], to_ids[number] = fields[i], ids[i]
            counts[number], latest[number] = 0, times[i]
            found += 1
        counts[number] += 1
        latest[number] = max(latest[number], times[i])
        place[i] = number
    return found
