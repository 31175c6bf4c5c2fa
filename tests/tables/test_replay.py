"""The same events give the same table, bit by bit, also from a state on; logs of changes."""

import numpy as np
import pytest
from reference import grown as small
from reference import row_memory

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import FieldRules, GrowingTable
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.serving_table import ServingTable

RULES = [FieldRules(admit=2, ttl=9), FieldRules(), FieldRules(admit=4, min_rows=9)]


def table(*, capacity=303, d=4, rules=RULES, track_changes=True, **options):
    options = {"max_rows": 300, "counters": 64, "window": 100} | options
    grown = small(rules, capacity, d=d, **options)
    grown.log = grown.track_changes() if track_changes else None
    return grown


def play(grown, first, last):
    """A step adds to the rows of the batch, so that two tables differ if their rows do."""
    for batch in range(first, last):
        rng = np.random.default_rng(batch)
        ids = rng.zipf(1.3, (30, 3)).astype(np.int64) + batch
        rows = grown.admit(ids, batch * 2 + rng.integers(0, 3, 30))
        for x in grown.memory[0].used(grown.capacity).values():
            np.add.at(x, rows.ravel(), 0.5)
        grown.expire(50)
        if batch % 7 == 0:
            grown.log.collect()
        if batch % 14 == 0:
            grown.log.clear()


def same(one, other):
    one, other = one.state(), other.state()
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("kind", ["count", "probabilistic"])
def test_a_replay_gives_the_same_bits(kind):
    one, other, cut = (table(admission_filter=kind, seed=3) for _ in range(3))
    play(one, 0, 120)
    play(other, 0, 70)
    cut.restore({name: x.copy() for name, x in other.state().items()})
    assert same(cut, other)
    play(other, 70, 120)
    play(cut, 70, 120)
    assert same(one, other) and same(one, cut)
    assert one.statistics() == other.statistics()
    statistics = one.statistics()
    assert min(statistics.evicted, statistics.expired, statistics.refused) > 20
    for changes in zip(one.log.collect()[:3], cut.log.collect()[:3]):
        assert np.array_equal(*changes)


def test_saving_delivers_nothing():
    """What changed between `collect` and `clear` is news, even if a state was taken."""
    grown = table()
    play(grown, 0, 3)
    first = grown.log.collect()
    rows = grown.admit(np.array([[10**9, 10**9, 10**9]]), 9)
    grown.state()
    grown.log.clear()
    assert set(grown.log.collect().rows) == set(rows.ravel()) < set(rows.ravel()) | set(first.rows)


def test_rows_of_absent_ids_are_delivered():
    """At first all of them, later those that a batch read."""
    grown = table()
    changes = grown.log.collect()
    assert changes.rows.tolist() == changes.fields.tolist() == [0, 1, 2]
    grown.log.clear()
    grown.admit(np.array([[5, 5, 5]]), 0)
    assert grown.log.collect().rows.tolist() == [0, 2, 3]


def test_a_state_without_changes_makes_everything_news():
    quiet = table(track_changes=False)
    quiet.admit(np.array([[5, 5, 5], [6, 6, 6]]), 0)
    told = table()
    told.restore(quiet.state())
    assert told.log.collect().rows.tolist() == [0, 1, 2, 3, 4]
    assert quiet.track_changes().collect().rows.tolist() == [0, 1, 2, 3, 4]


def test_each_log_has_its_own_changes():
    """Two serving copies ask at different times, also after a restart."""
    grown = table()
    other = grown.track_changes()
    grown.admit(np.array([[5, 5, 5]]), 0)
    grown.log.collect()
    grown.log.clear()
    grown.admit(np.array([[6, 6, 5]]), 0)
    again = table()
    logs = [grown.log, other, again.log, again.track_changes()]
    again.restore(grown.state())
    found = [log.collect().rows.tolist() for log in logs]
    assert found == [[0, 2, 4], [0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    "other", [{"d": 5}, {"rules": RULES[:2]}, {"counters": 128}, {"capacity": 150, "max_rows": 9}]
)
def test_a_state_of_another_table_is_refused(other):
    """Also that of a table that only serves: it has no moments."""
    grown = table()
    play(grown, 0, 40)
    served = GrowingTable(RULES, memory=[RowMemory(w=np.ones((303, 4), np.float32))], capacity=303)
    for saved, made in ((grown, table(**other)), (served, table(counters=1 << 22))):
        with pytest.raises(InputError, match="saved table has"):
            made.restore(saved.state())


def test_a_run_can_be_the_start():
    """Ids that are inserted need no second occurrence, and keep their time."""
    grown = table()
    fields, ids = np.array([0, 2, 2]), np.array([5, 5, 6])
    rows = grown.insert(fields, ids, np.array([10, 50, 20]))
    assert rows.tolist() == [3, 4, 5] and grown.clock == 50
    assert grown.lookup(np.array([[5, 5, 6]])).tolist() == [[3, 1, 5]]
    assert grown.insert(fields[:1], ids[:1], 0).tolist() == [3]
    assert grown.expire() == 1 and grown.lookup(np.array([[5, 5, 6]])).tolist() == [[0, 1, 5]]


@pytest.mark.parametrize(
    ("fields", "ids"),
    [([3], [5]), ([-1], [5]), ([0, 2], [5]), ([0], [5, 6]), ([[0]], [[5]]), ([0.5], [5])],
)
def test_pairs_that_cannot_be_inserted_change_nothing(fields, ids):
    grown = table()
    with pytest.raises(InputError, match=r"equal length, .*fields from 0 to 2"):
        grown.insert(np.array(fields), np.array(ids), 9)
    assert grown.num_rows == grown.clock == 0


def test_a_full_table_inserts_nothing():
    grown = table(capacity=6, max_rows=3)
    grown.insert(np.zeros(2, int), np.array([1, 2]), 0)
    with pytest.raises(InputError, match=r"full: 2 ids .* 2 more .* max_rows allows 3"):
        grown.insert(np.zeros(3, int), np.array([2, 3, 4]), 0)
    assert grown.num_rows == 2
    assert grown.insert(np.zeros(2, int), np.array([3, 2]), 0).tolist() == [5, 4]


@pytest.mark.parametrize("admit", [1, 2])
def test_a_table_that_only_serves_takes_over_a_trained_one(admit):
    """It has no moments, and it counts nothing if its own rules admit every id."""
    grown = table()
    play(grown, 0, 40)
    memory = [RowMemory(w=row_memory(303, 4).w)]
    rules = [FieldRules(admit=admit)] * 3
    served = GrowingTable(rules, memory=memory, capacity=303, counters=64)
    served.restore(grown.state())
    ids = np.random.default_rng(1).zipf(1.3, (200, 3)).astype(np.int64) + 39
    rows = served.lookup(ids)
    assert np.array_equal(rows, grown.lookup(ids)) and (rows >= 3).any()
    assert np.array_equal(served.memory[0].w[rows], grown.memory[0].w[rows])
    assert served.statistics().filter_bytes == (0 if admit == 1 else 128)


def expiring(grown, ids, now):
    """Let ids of the first field come, and go at once."""
    grown.admit(np.stack([ids, np.zeros_like(ids)], axis=1), now)
    grown.admit(np.array([[0, 0]]), now + 4)
    grown.expire()


@pytest.mark.parametrize("more", [0, 6])
def test_a_log_remembers_each_id_once_or_breaks(more):
    """The same ids that go again and again are few; other ones each time are too many."""
    grown = small([FieldRules(ttl=4), FieldRules(admit=2)], 14)
    log, copy = grown.track_changes(most_gone=16), ServingTable(2, 14, [2])
    for i in range(100):
        expiring(grown, np.arange(1, 7) + more * i, 10 * i)
        assert log._num_gone <= 16
    assert (log.is_broken, log.breaks) == (bool(more), bool(more))
    assert log.collect().gone.ids.tolist() == ([] if more else [1, 2, 3, 4, 5, 6])
    log.begin_again()
    used = grown.state()
    state = {name: used[name] for name in ("ids", "fields", "free")}
    copy.restore(state | {"table0": used["table0.w"]})
    expiring(grown, np.array([7, 8]), 1000)
    changes = log.collect()
    assert not log.is_broken and changes.gone.ids.tolist() == [7, 8]
    copy.apply(changes, [grown.memory[0].w[changes.rows]])
    every = np.stack([np.arange(9)] * 2, axis=1)
    assert np.array_equal(copy.read(every)[0], grown.memory[0].w[grown.lookup(every)])
