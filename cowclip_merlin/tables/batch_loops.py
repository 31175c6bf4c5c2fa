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
    """The ids of a batch, one after the other, which get their rows.

    A cell is a row of the batch in one field. Its number is `row * F + field`.

    Attributes:
        ids: int64 [m].
        ends: for each cell, the first occurrence after it, int64 [b * F]; empty if every cell has
            one id.
        num_fields: F.
        now: event times, uint32 [b].
        rows: int32 [m]; meanwhile below 0 for ids that have no row yet.
        place: occurrence and cell where the first pass goes on, int64 [2].
    """

    ids: Array
    ends: Array
    num_fields: int
    now: Array
    rows: Array
    place: Array


def occurrences(ids: Ids, now: Array) -> Occurrences:
    """The occurrences of a batch, without rows.

    Args:
        ids: int64.
        now: event times, uint32 [b].
    """
    values = ids.values.reshape(-1)
    ends = () if ids.lengths is None else np.cumsum(ids.lengths.reshape(-1), dtype=np.int64)
    return Occurrences(
        ids=values,
        ends=np.asarray(ends, np.int64),
        num_fields=ids.num_fields,
        now=now,
        rows=np.empty(len(values), np.int32),
        place=np.zeros(2, np.int64),
    )


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
    fields = np.tile(np.arange(ids.num_fields, dtype=np.int32), ids.num_rows)
    fields = fields.repeat(ids.lengths.reshape(-1))
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
    num_fields, n, ids, rows, ends = (
        batch.num_fields,
        len(batch.ids),
        batch.ids,
        batch.rows,
        batch.ends,
    )
    several, first, cell = len(ends) > 0, batch.place[0], batch.place[1]
    event, field = cell // num_fields, cell % num_fields
    ahead_cell, ahead = cell, field if several else (cell + AHEAD) % num_fields
    for i in range(first, n):
        while several and ends[cell] <= i:
            cell, field = cell + 1, field + 1
            if field == num_fields:
                event, field = event + 1, 0
                admission.end_event(state)
        if i + AHEAD < n:
            while several and ends[ahead_cell] <= i + AHEAD:
                ahead_cell, ahead = ahead_cell + 1, ahead + 1 if ahead + 1 < num_fields else 0
            prefetch_cell(cells, hash_id(ahead, ids[i + AHEAD]))
        id_, now = ids[i], batch.now[event]
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
            batch.place[0], batch.place[1] = i, cell if several else i
            return False
        elif admission.admits(state, start, field, id_):
            rows[i] = -1 - collect(new, field, id_, now)
            write_cell(cells, found, field, id_, NEW - 1 - rows[i])
        else:
            rows[i] = REFUSED
        if not several:  # one id in each cell
            field, ahead = field + 1, ahead + 1 if ahead + 1 < num_fields else 0
            if field == num_fields:
                event, field = event + 1, 0
                admission.end_event(state)
    for _ in range(event, len(batch.now)):
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
    num_fields, rows, ends, several = batch.num_fields, batch.rows, batch.ends, len(batch.ends) > 0
    cell, event, field = 0, 0, 0
    for i in range(len(rows)):
        while several and ends[cell] <= i:
            cell, field = cell + 1, field + 1
            if field == num_fields:
                event, field = event + 1, 0
        row = np.int64(rows[i])
        if row == REFUSED and len(new_rows) == 0:
            rows[i] = field
        elif row == REFUSED:
            rows[i] = row_of_refused(cells, batch.ids[i], field, batch.now[event], last_seen)
        elif row < 0:
            rows[i] = new_rows[-1 - row]
        if not several:  # one id in each cell
            field = field + 1
            if field == num_fields:
                event, field = event + 1, 0


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


@compiled
def count_and_admit_pairs(
    cells: Array,
    count: int,
    pairs: tuple[Array, Array, Array, Array],
    last_seen: Array,
    state: AdmissionState,
    new: NewIds,
    rows: Array,
    place: Array,
) -> bool:
    """Find the rows of pairs, and collect the ids that get one; see `count_and_admit`.

    Args:
        cells: the index; ids that get a row are in it from now on, without their row.
        count: ids in the index that have a row.
        pairs: fields, ids, counts and times, int64 [n] each. A pair may occur several times.
        last_seen: uint32 [capacity], brought up to date.
        state: the `AdmissionState`, which counts.
        new: the `NewIds`, written.
        rows: int32 [n], written.
        place: pair with which to go on, int64 [1].

    Returns:
        Whether the pass is done; else the index is too full to go on.
    """
    fields, ids, counts, times = pairs
    for i in range(place[0], len(ids)):
        field, id_, now = fields[i], ids[i], times[i]
        start = hash_id(field, id_)
        cell = find_cell(cells, start, field, id_)
        number = number_in(cells, cell)
        if number >= NEW:
            new.seen[number - NEW] = max(np.int64(new.seen[number - NEW]), now)
            rows[i] = NEW - 1 - number
        elif number != ABSENT:
            last_seen[number] = max(np.int64(last_seen[number]), now)
            rows[i] = number
        elif too_full(cells, count + new.number[0]):
            place[0] = i
            return False
        else:
            rows[i] = REFUSED
            for _ in range(counts[i]):
                if admission.admits(state, start, field, id_):
                    rows[i] = -1 - collect(new, field, id_, now)
                    write_cell(cells, cell, field, id_, NEW - 1 - rows[i])
                    break
    return True


@compiled
def finish_pairs(
    cells: Array,
    pairs: tuple[Array, Array, Array, Array],
    last_seen: Array,
    new_rows: Array,
    rows: Array,
) -> None:
    """Write the rows of pairs that were admitted, also where the pair was refused before."""
    fields, ids, _, times = pairs
    for i in range(len(ids)):
        row = np.int64(rows[i])
        if row == REFUSED:
            rows[i] = row_of_refused(cells, ids[i], fields[i], times[i], last_seen)
        elif row < 0:
            rows[i] = new_rows[-1 - row]
