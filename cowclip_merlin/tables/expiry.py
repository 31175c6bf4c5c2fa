"""Which ids lose their row: those not seen for a time, and the oldest where rows are bounded.

Time is event time in whole seconds, uint32, so a replay drops the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.compiled import AHEAD, compiled
from cowclip_merlin.tables import batch_loops
from cowclip_merlin.tables.id_map import (
    NO_FIELD,
    IdMap,
    RowOwners,
    give_back,
    hash_id,
    prefetch_cell,
    zeros,
)
from cowclip_merlin.tables.layout import LATEST, FieldRules
from cowclip_merlin.types import Array

SAMPLE = 1 << 16
"""Rows that are looked at to find out what is old."""

OLDEST = 0.01
"""Share of rows that one search for the oldest allows to drop."""

CLOCK, EXPIRE_AT, EVICT_AT, EVICT_LEFT, CUTOFF = range(5)
"""Places in `ExpiryState.numbers`."""


class ExpiryState(NamedTuple):
    """Times and cursors, as arrays.

    Attributes:
        last_seen: event time of each row's last occurrence, uint32 [capacity].
        in_batch: rows that must stay while a batch gets its rows, bool [capacity].
        ttl: seconds without an occurrence after which an id goes, int64 [F]; 0 for never.
        min_rows: ids of each field that the bound leaves there, int64 [F].
        numbers: CLOCK: the latest event time so far; EXPIRE_AT: row where the next slice of
            expiry begins; EVICT_AT: row where the next search for old rows begins; EVICT_LEFT:
            rows until that search is back where it began; CUTOFF: rows last seen up to this time
            are old; int64 [5].
    """

    last_seen: Array
    in_batch: Array
    ttl: Array
    min_rows: Array
    numbers: Array


class Dropped(NamedTuple):
    """Ids that lost their row: index of the field and id, int64 [n]."""

    fields: Array
    ids: Array


def new_expiry(fields: Sequence[FieldRules], capacity: int) -> ExpiryState:
    """Expiry before the first event.

    Args:
        fields: their rules.
        capacity: rows of the table.

    Raises:
        InputError: a number is negative, or a time beyond 32 bits.
    """
    ttl, min_rows = [rules.ttl for rules in fields], [rules.min_rows for rules in fields]
    if not all(0 <= t <= LATEST for t in ttl) or not all(n >= 0 for n in min_rows):
        raise InputError("ttl and min_rows: give numbers from 0 on, ttl below 2^32 seconds")
    numbers = np.zeros(5, np.int64)
    numbers[[EXPIRE_AT, EVICT_AT]] = len(ttl)
    return ExpiryState(
        last_seen=zeros(capacity, np.uint32),
        in_batch=zeros(capacity, np.bool_),
        ttl=np.asarray(ttl, np.int64),
        min_rows=np.asarray(min_rows, np.int64),
        numbers=numbers,
    )


def event_times(now: Array | int, n: int) -> Array:
    """The event times of n events, uint32 [n].

    Args:
        now: whole seconds, [n] or one for all.
        n: number of events.

    Raises:
        InputError: one is below 0 or beyond 32 bits.
    """
    times = np.broadcast_to(np.asarray(now, np.int64), n)
    if n and not 0 <= times.min() <= times.max() <= LATEST:
        raise InputError("event times must be whole seconds from 0 to 2^32 - 1")
    return times.astype(np.uint32)


@compiled
def is_overdue(owners: RowOwners, expiry: ExpiryState, row: int, clock: int) -> bool:
    """Whether the id of a row was not seen for its time to live; False for a free row."""
    field = np.int64(owners.fields[row])
    if field == NO_FIELD or expiry.ttl[field] == 0:
        return False
    return clock - np.int64(expiry.last_seen[row]) >= expiry.ttl[field]


@compiled
def expire_slice(
    cells: Array,
    owners: RowOwners,
    expiry: ExpiryState,
    start: int,
    stop: int,
    fields: Array,
    ids: Array,
) -> int:
    """Drop the overdue ids among rows start to stop; how many, and which in `fields` and `ids`."""
    gone, clock = 0, expiry.numbers[CLOCK]
    for row in range(start, stop):
        ahead = row + AHEAD
        if ahead < stop and is_overdue(owners, expiry, ahead, clock):
            prefetch_cell(cells, hash_id(np.int64(owners.fields[ahead]), owners.ids[ahead]))
        if is_overdue(owners, expiry, row, clock) and not expiry.in_batch[row]:
            fields[gone], ids[gone] = owners.fields[row], owners.ids[row]
            gone += 1
            give_back(cells, owners, row)
    return gone


@compiled
def evict_old(
    cells: Array,
    owners: RowOwners,
    expiry: ExpiryState,
    first: int,
    last: int,
    fields: Array,
    ids: Array,
) -> int:
    """Drop old ids until `fields` is full or the search has been around all rows; how many."""
    gone, row, left = 0, expiry.numbers[EVICT_AT], expiry.numbers[EVICT_LEFT]
    while gone < len(fields) and left > 0:
        row = first if row >= last else row
        field = np.int64(owners.fields[row])
        if (
            field != NO_FIELD
            and np.int64(expiry.last_seen[row]) <= expiry.numbers[CUTOFF]
            and not expiry.in_batch[row]
            and owners.per_field[field] > expiry.min_rows[field]
        ):
            fields[gone], ids[gone] = field, owners.ids[row]
            gone += 1
            give_back(cells, owners, row)
        row += 1
        left -= 1
    expiry.numbers[EVICT_AT], expiry.numbers[EVICT_LEFT] = row, left
    return gone


def expire(id_map: IdMap, expiry: ExpiryState, rows: int) -> Dropped:
    """Look at the next `rows` rows and drop the ids that are overdue.

    Args:
        id_map: the `IdMap`.
        expiry: its times.
        rows: to look at; the slice ends at the last row, and the next one begins at the first.
    """
    if not expiry.ttl.any():
        return Dropped(np.empty(0, np.int64), np.empty(0, np.int64))
    start = int(expiry.numbers[EXPIRE_AT])
    stop = min(start + rows, id_map.high_water)
    fields, ids = np.empty((2, max(stop - start, 0)), np.int64)
    gone = expire_slice(id_map.cells, id_map.owners, expiry, start, stop, fields, ids)
    expiry.numbers[EXPIRE_AT] = stop if stop < id_map.high_water else id_map.num_fields
    return Dropped(fields[:gone].copy(), ids[:gone].copy())


def make_room(
    id_map: IdMap, expiry: ExpiryState, wanted: int, rows: Array, *, oldest: bool
) -> tuple[Dropped, Dropped]:
    """Drop ids so that `wanted` rows become free.

    Args:
        id_map: the ids.
        expiry: their times.
        wanted: rows.
        rows: of the running batch, which stay; numbers below 0 are ignored.
        oldest: whether to drop the oldest ids; if not, only the overdue ones, and maybe more of
            them.

    Returns:
        The overdue and the oldest ids dropped; fewer than wanted if no more may go.
    """
    batch_loops.mark(expiry.in_batch, rows, True)
    nothing = Dropped(np.empty(0, np.int64), np.empty(0, np.int64))
    if oldest:
        dropped = nothing, evict(id_map, expiry, wanted)
    else:
        expiry.numbers[EXPIRE_AT] = id_map.num_fields
        dropped = expire(id_map, expiry, id_map.high_water), nothing
    batch_loops.mark(expiry.in_batch, rows, False)
    return dropped


def evict(id_map: IdMap, expiry: ExpiryState, wanted: int) -> Dropped:
    """Drop `wanted` ids that are among the oldest, or all that may go if they are fewer.

    A sample of the rows says what is old. The rows are then searched from where the last search
    ended, so a call's time goes with the ids it drops, not with the size of the table.
    """
    fields, ids = np.empty((2, wanted), np.int64)
    gone, final = 0, False
    while gone < wanted:
        if expiry.numbers[EVICT_LEFT] == 0:
            if final:
                break
            expiry.numbers[CUTOFF] = _cutoff(id_map, expiry, wanted - gone)
            expiry.numbers[EVICT_LEFT] = id_map.high_water - id_map.num_fields
            final = expiry.numbers[CUTOFF] == LATEST
        found = evict_old(
            id_map.cells,
            id_map.owners,
            expiry,
            id_map.num_fields,
            id_map.high_water,
            fields[gone:],
            ids[gone:],
        )
        gone += found
    if final:
        expiry.numbers[EVICT_LEFT] = 0  # the next search must look for the oldest again
    return Dropped(fields[:gone], ids[:gone])


def _cutoff(id_map: IdMap, expiry: ExpiryState, wanted: int) -> int:
    """The event time up to which rows are old: at least OLDEST of those that may go."""
    used, owners = id_map.high_water - id_map.num_fields, id_map.owners
    rows = id_map.num_fields + np.arange(0, used, max(-(-used // SAMPLE), 1))
    fields = owners.fields[rows]
    rows, fields = rows[fields != NO_FIELD], fields[fields != NO_FIELD]
    above = owners.per_field[fields] > expiry.min_rows[fields]
    seen = expiry.last_seen[rows[above & ~expiry.in_batch[rows]]]
    # The sample's part of `wanted`; LATEST if that is more than may go.
    part = wanted / max(len(id_map), 1) * len(rows)
    number = int(np.ceil(max(OLDEST * len(seen), part)))
    return int(np.partition(seen, number - 1)[number - 1]) if 0 < number <= len(seen) else LATEST
