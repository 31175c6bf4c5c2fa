"""Shards of a growing table hold together what one table holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import grown

from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import FieldRules, GrowingTable
from cowclip_merlin.tables.growing_shard import (
    GrowingShard,
    Pairs,
    distinct_pairs,
    merged,
    owners,
    rows_of,
)
from cowclip_merlin.tables.id_map import hash_id

RULES = (FieldRules(), FieldRules(ttl=15, admit=3), FieldRules(ttl=40))


def whole_table(kind=GrowingTable, **more):
    return grown(RULES, 500, counters=1 << 16, kind=kind, **more)


def shards_of(size, **more):
    return [whole_table(GrowingShard, rank=rank, size=size, **more) for rank in range(size)]


def contents(tables):
    """(field, id) -> time, row and moments."""
    found = {}
    for table in tables:
        state = table.state()
        for row in range(table.num_fields, len(state["ids"])):
            if state["fields"][row] != 0xFFFF:
                values = [state[f"table0.{name}"][row].tolist() for name in "wmv"]
                pair = int(state["fields"][row]), int(state["ids"][row])
                found[pair] = int(state["last_seen"][row]), values
    return found


def admit_together(shards, ids, times):
    """What the workers do with their parts of a batch; the pair's rows, by owner."""
    size, clock = len(shards), int(times.max(initial=0))
    ends = len(times) * np.arange(size + 1) // size
    asked = []
    for shard, first, end in zip(shards, ends, ends[1:]):
        pairs, _ = shard.split(ids.take(slice(first, end)), times[first:end])
        asked.append((pairs, shard.owners(pairs)))
    found = []
    for rank, shard in enumerate(shards):
        own = [pairs.take(owner == rank) for pairs, owner in asked]
        received = Pairs(*(np.concatenate(x) for x in zip(*own)))
        rows = shard.admit_pairs(received, events=len(times), clock=clock)
        shard.hold(rows)
        shard.expire()
        found.append((received, rows))
    return found


def admit_alone(table, ids, times):
    table.hold(table.admit(ids, times))
    table.expire()


def batches_of(numbers, several):
    """Batches of ids with times that grow, now and then by much."""
    rng, now = np.random.default_rng(numbers), 1000
    for _ in range(12):
        size = int(rng.integers(0, 9))
        now += int(rng.integers(0, 12))
        times = np.sort(now + rng.integers(0, 3, size))
        lengths = rng.integers(0, 3, (size, 3)).astype(np.int32)
        many = Ids(rng.integers(-9, 9, int(lengths.sum())), lengths)
        yield many if several else Ids(rng.integers(-9, 9, (size, 3))), times


@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_shards_equal_one_table(numbers, size, several):
    table, shards = whole_table(), shards_of(size)
    for ids, times in batches_of(numbers, several):
        admit_alone(table, ids, times)
        known = contents([table])
        for received, rows in admit_together(shards, ids, times):
            named = dict(zip(zip(received.fields.tolist(), received.ids.tolist()), rows.tolist()))
            for (field, id_), row in named.items():
                assert (row < 3) == ((field, id_) not in known)
        assert contents(shards) == known
        statistics = [shard.statistics() for shard in shards]
        for name in ("expired", "refused"):
            total = sum(getattr(each, name) for each in statistics)
            assert total == getattr(table.statistics(), name)
        assert {each.events for each in statistics} == {table.statistics().events}
        assert {shard.clock for shard in shards} == {table.clock}


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4))
def test_another_number_of_shards_goes_on(numbers, before, after):
    table, shards, new = whole_table(), shards_of(before), shards_of(after)
    for i, (ids, times) in enumerate(batches_of(numbers, False)):
        if i == 6:
            states = [shard.state() for shard in shards]
            for rank, shard in enumerate(new):
                parts = [rows_of(state, rank, after) for state in states]
                shard.restore(merged(parts, first=rank == 0))
            shards = new
        admit_alone(table, ids, times)
        admit_together(shards, ids, times)
    assert contents(shards) == contents([table])
    for name in ("expired", "refused"):
        total = sum(getattr(shard.statistics(), name) for shard in shards)
        assert total == getattr(table.statistics(), name)


def test_each_shard_keeps_its_share_of_the_bound():
    shards = shards_of(3, max_rows=62)
    assert [shard.max_rows for shard in shards] == [21, 21, 20]
    for first in range(0, 300, 10):
        ids = Ids(np.tile(np.arange(first, first + 10)[:, None], (1, 3)))
        admit_together(shards, ids, np.full(10, 1000 + first))
    assert all(0 < shard.num_rows <= shard.max_rows for shard in shards)


def test_owners_share_ids_equally_and_no_bits_of_the_index():
    ids = np.arange(30_000)
    owner = owners(np.zeros(30_000, int), ids, 3)
    assert abs(np.bincount(owner) - 10_000).max() < 400
    low = np.array([int(hash_id(0, id_)) & 1 for id_ in ids[owner == 0].tolist()])
    assert 0.45 < low.mean() < 0.55


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 9)), max_size=30))
def test_distinct_pairs(events):
    ids = np.array([event[:2] for event in events], np.int64).reshape(-1, 2)
    times = np.array([event[2] for event in events], np.int64)
    pairs, place = distinct_pairs(Ids(ids), times)
    wanted = {}
    for row, now in zip(ids.tolist(), times.tolist()):
        for field, id_ in enumerate(row):
            count, latest = wanted.get((field, id_), (0, 0))
            wanted[field, id_] = count + 1, max(latest, now)
    found = dict(zip(zip(*(x.tolist() for x in pairs[:2])), zip(*(x.tolist() for x in pairs[2:]))))
    assert found == wanted and len(pairs.ids) == len(wanted)
    np.testing.assert_array_equal(pairs.ids[place], ids.reshape(-1))
    for column, again in zip(pairs, Pairs.unpacked(pairs.packed())):
        np.testing.assert_array_equal(again, column)


@pytest.mark.parametrize("more", [{"window": 5}, {"admission_filter": "probabilistic"}])
def test_what_depends_on_the_order_of_all_events_is_refused(more):
    with pytest.raises(InputError, match="depend on the order"):
        shards_of(2, **more)
