"""A serving copy has the rows of the growing table as of its last sync."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.growing_table import GrowingTable
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.tables.serving_table import ServingTable

FIELDS, CAPACITY, IDS = 2, 14, 9
EVERY_ID = np.stack([np.arange(IDS)] * FIELDS, axis=1)


def new_table(**options):
    memory = [RowMemory(w=np.full((CAPACITY, d), 9.0, np.float32), std=1.0, seed=d) for d in (3, 1)]
    rules = [FieldRules(ttl=4), FieldRules(admit=2)]
    return GrowingTable(rules, memory=memory, capacity=CAPACITY, **options)


def values_of(table, ids=EVERY_ID):
    rows = table.lookup(ids)
    return [memory.w[rows] for memory in table.memory]


class Follower:
    """A serving copy, and what it must read: all values at the time of its last sync."""

    def __init__(self, table):
        self.table, self.changes = table, table.track_changes()
        self.copy = ServingTable(FIELDS, CAPACITY, [3, 1])
        self.expected = [np.zeros((IDS, FIELDS, d)) for d in (3, 1)]

    def sync(self, delivered):
        changes = self.changes.collect()
        self.copy.apply(changes, [memory.w[changes.rows] for memory in self.table.memory])
        if delivered:
            self.changes.clear()
        self.expected = [x.copy() for x in values_of(self.table)]

    def reload(self):
        state = {name: x.copy() for name, x in self.copy.state().items()}
        self.copy = ServingTable(FIELDS, CAPACITY, [3, 1])
        self.copy.restore(state)

    def check(self):
        for found, wanted in zip(self.copy.read(EVERY_ID), self.expected, strict=True):
            assert np.array_equal(found, wanted)


ACTIONS = st.one_of(
    st.tuples(st.just("train"), st.lists(st.tuples(*[st.integers(0, IDS - 1)] * 2), max_size=4)),
    st.tuples(st.just("sync"), st.tuples(st.integers(0, 1), st.booleans())),
    st.tuples(st.just("reload"), st.integers(0, 1)),
    st.tuples(st.just("expire"), st.none()),
)


@settings(max_examples=150)
@given(st.lists(ACTIONS, max_size=40), st.integers(8, CAPACITY - FIELDS))
def test_a_copy_reads_the_values_of_its_last_sync(actions, max_rows):
    table, now = new_table(max_rows=max_rows), 0
    followers = [Follower(table), Follower(table)]
    for name, what in actions:
        if name == "train" and what:
            now += 1
            rows = np.unique(table.admit(np.array(what), now))
            for memory in table.memory:
                memory.w[rows] += now
        elif name == "sync":
            followers[what[0]].sync(what[1])
        elif name == "reload":
            followers[what].reload()
        elif name == "expire":
            table.expire()
        for follower in followers:
            follower.check()


def test_a_state_with_more_rows_than_the_capacity_is_refused():
    table = new_table()
    table.admit(EVERY_ID[:, :1].repeat(2, axis=1), 0)
    follower = Follower(table)
    follower.sync(True)
    with pytest.raises(InputError, match="capacity is 5"):
        ServingTable(FIELDS, 5, [3, 1]).restore(follower.copy.state())


def expiring(table, ids, now):
    """Let ids of the first field come, and go at once."""
    table.admit(np.stack([ids, np.zeros_like(ids)], axis=1), now)
    table.admit(np.array([[0, 0]]), now + 4)
    table.expire()


def test_ids_that_go_again_and_again_are_remembered_once():
    table = new_table()
    log = table.track_changes(most_gone=16)
    for i in range(100):
        expiring(table, np.arange(1, 7), 10 * i)
        assert log._num_gone <= 16
    assert not log.is_broken
    assert log.collect().gone.ids.tolist() == [1, 2, 3, 4, 5, 6]


def test_more_ids_than_are_remembered_break_the_log():
    table = new_table()
    log = table.track_changes(most_gone=16)
    copy = ServingTable(FIELDS, CAPACITY, [3, 1])
    for i in range(100):
        expiring(table, np.arange(1, 7) + 6 * i, 10 * i)
        assert log._num_gone <= 16
    assert (log.is_broken, log.breaks) == (True, 1) and len(log.collect().gone.ids) == 0
    log.begin_again()
    used = table.state()
    state = {name: used[name] for name in ("ids", "fields", "free")}
    copy.restore(state | {f"table{i}": used[f"table{i}.w"] for i in range(2)})
    expiring(table, np.array([7, 8]), 1000)
    changes = log.collect()
    assert not log.is_broken and changes.gone.ids.tolist() == [7, 8]
    copy.apply(changes, [memory.w[changes.rows] for memory in table.memory])
    for found, wanted in zip(copy.read(EVERY_ID), values_of(table), strict=True):
        assert np.array_equal(found, wanted)
