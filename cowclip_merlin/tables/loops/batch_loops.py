"""The compiled loops that turn a batch of ids into rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.kernels.compiled import compiled
from cowclip_merlin.kernels.numba_prefetch import AHEAD
from cowclip_merlin.tables import admission
from cowclip_merlin.tables.admission import AdmissionState
from cowclip_merlin.tables.id_map import IdMap, take_row
from cowclip_merlin.tables.loops.hashing import hash_id
from cowclip_merlin.tables.loops.index_cells import (
    ABSENT,
    find_cell,
    number_in,
    prefetch_cell,
    remove_cell,
    too_full,
    write_cell,
)

Array = npt.NDArray[Any]

_NEW = 1 << 31  # numbers in the index from here on: place in `NewIds` of an id without a row yet
_REFUSED = -(1 << 31)  # a row's number for now: the id is not admitted


class Batch(NamedTuple):
    """A batch that gets its rows.

    Attributes:
        ids: int64 [b, F].
        now: event times, uint32 [b].
        rows: int32 [b, F]; meanwhile below 0 for ids that have no row yet.
    """

    ids: Array
    now: Array
    rows: Array


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


@compiled
def look_up(cells: Any, ids: Any, rows: Any) -> None:
    """Rows of the ids; that of the field's absent ids where an id has none.

    Args:
        cells: the index.
        ids: int64 [b, F].
        rows: int32 [b, F], written.
    """
    num_fields, flat_ids, flat_rows = ids.shape[1], ids.reshape(-1), rows.reshape(-1)
    field, ahead = 0, AHEAD % num_fields
    for i in range(ids.size):
        if i + AHEAD < ids.size:
            prefetch_cell(cells, hash_id(ahead, flat_ids[i + AHEAD]))
        row = number_in(cells, find_cell(cells, hash_id(field, flat_ids[i]), field, flat_ids[i]))
        flat_rows[i] = field if row == ABSENT else row
        field = field + 1 if field + 1 < num_fields else 0
        ahead = ahead + 1 if ahead + 1 < num_fields else 0


def collect_new(id_map: IdMap, state: AdmissionState, last_seen: Array, batch: Batch) -> NewIds:
    """Find the rows of a batch, and collect the ids that get one; see `count_and_admit`."""
    fields, ids = np.empty((2, batch.rows.size), np.int64)
    new = NewIds(fields, ids, np.empty(batch.rows.size, np.uint32), np.zeros(1, np.int64))
    done, count = 0, len(id_map)
    while done < batch.rows.size:
        done = count_and_admit(id_map.cells, count, batch, last_seen, state, new, done)
        if done < batch.rows.size:
            id_map.grow_index(count + int(new.number[0]) + 1)
    return new


@compiled
def count_and_admit(
    cells: Any, count: int, batch: Any, last_seen: Any, state: Any, new: Any, first: int
) -> Any:
    """The first pass over a batch: find rows, and collect the ids that get one.

    Args:
        cells: the index; ids that get a row are in it from now on, without their row.
        count: ids in the index that have a row.
        batch: the `Batch`, whose rows are written.
        last_seen: uint32 [capacity], brought up to date.
        state: the `AdmissionState`, which counts.
        new: the `NewIds`, written.
        first: occurrence to begin with, 0 to b * F.

    Returns:
        The occurrence where the index was too full to go on, or b * F at the end.
    """
    num_fields, n = batch.rows.shape[1], batch.rows.size
    ids, rows = batch.ids.reshape(-1), batch.rows.reshape(-1)
    event, field, ahead = first // num_fields, first % num_fields, (first + AHEAD) % num_fields
    for i in range(first, n):
        if i + AHEAD < n:
            prefetch_cell(cells, hash_id(ahead, ids[i + AHEAD]))
        id_, now = ids[i], batch.now[event]
        start = hash_id(field, id_)
        cell = find_cell(cells, start, field, id_)
        number = number_in(cells, cell)
        if number >= _NEW:
            new.seen[number - _NEW] = max(new.seen[number - _NEW], now)
            rows[i] = _NEW - 1 - number
        elif number != ABSENT:
            last_seen[number] = max(last_seen[number], now)
            rows[i] = number
        elif too_full(cells, count + new.number[0]):
            return i
        elif admission.admits(state, start, field, id_):
            rows[i] = -1 - _collect(new, field, id_, now)
            write_cell(cells, cell, field, id_, _NEW - 1 - rows[i])
        else:
            rows[i] = _REFUSED
        field, ahead = field + 1, ahead + 1 if ahead + 1 < num_fields else 0
        if field == num_fields:
            event, field = event + 1, 0
            admission.end_event(state)
    return n


@compiled
def _collect(new: Any, field: int, id_: Any, now: Any) -> int:
    i = new.number[0]
    new.fields[i], new.ids[i], new.seen[i] = field, id_, now
    new.number[0] += 1
    return i


@compiled
def take_rows(cells: Any, owners: Any, new: Any, last_seen: Any, new_rows: Any) -> None:
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
def forget(cells: Any, new: Any) -> None:
    """Take the collected ids out of the index again."""
    for i in range(new.number[0]):
        start = hash_id(new.fields[i], new.ids[i])
        remove_cell(cells, find_cell(cells, start, new.fields[i], new.ids[i]))


@compiled
def finish_rows(cells: Any, batch: Any, last_seen: Any, new_rows: Any) -> None:
    """The last pass over a batch: an id admitted at one occurrence has its row at all of them."""
    for event in range(batch.rows.shape[0]):
        for field in range(batch.rows.shape[1]):
            row = np.int64(batch.rows[event, field])
            if row == _REFUSED and len(new_rows) == 0:
                batch.rows[event, field] = field
            elif row == _REFUSED:
                batch.rows[event, field] = _row_of_refused(cells, batch, event, field, last_seen)
            elif row < 0:
                batch.rows[event, field] = new_rows[-1 - row]


@compiled
def _row_of_refused(cells: Any, batch: Any, event: int, field: int, last_seen: Any) -> int:
    id_ = batch.ids[event, field]
    number = number_in(cells, find_cell(cells, hash_id(field, id_), field, id_))
    if number == ABSENT:
        return field
    last_seen[number] = max(last_seen[number], batch.now[event])
    return number


@compiled
def mark(flags: Any, rows: Any, value: bool) -> None:
    """Set the flags of rows; negative numbers are not rows."""
    for row in rows.flat:
        if row >= 0:
            flags[row] = value


@compiled
def list_changed(flags: Any, rows: Any, changed: Any) -> int:
    """Set the flags of rows, write those that had none to `changed`, and return their number."""
    found = 0
    for row in rows.flat:
        if not flags[row]:
            flags[row] = True
            changed[found] = row
            found += 1
    return found
