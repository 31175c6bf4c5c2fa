"""The compiled loops on distinct pairs of field and id, each with its occurrences in a batch."""

from __future__ import annotations

import numpy as np

from cowclip_merlin.kernels.compiled import compiled
from cowclip_merlin.tables import admission
from cowclip_merlin.tables.admission import AdmissionState
from cowclip_merlin.tables.loops.batch_loops import (
    NEW,
    REFUSED,
    NewIds,
    collect,
    row_of_refused,
)
from cowclip_merlin.tables.loops.hashing import GOLDEN, hash_id, mix
from cowclip_merlin.tables.loops.index_cells import (
    ABSENT,
    find_cell,
    number_in,
    too_full,
    write_cell,
)
from cowclip_merlin.types import Array


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
