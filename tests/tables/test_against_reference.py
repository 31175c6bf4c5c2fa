"""Sequences of admit, lookup, expire, evict, save and load: the same as a dict."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Reference, first_values

from cowclip_merlin.tables.growing_table import GrowingTable
from cowclip_merlin.tables.id_map import hash_id
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.layout import FieldRules

FIELDS, CAPACITY, D = 3, 200, 3
UNIVERSE = [0, 1, -1, 2**63 - 1, -(2**63), *range(2, 27)]  # the ids of every field
COUNTERS = 1 << 14
IDS = st.lists(st.tuples(*[st.sampled_from(UNIVERSE)] * FIELDS), min_size=1, max_size=12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), IDS, st.lists(st.integers(0, 9), min_size=12, max_size=12)),
        st.tuples(st.just("lookup"), IDS),
        st.tuples(st.just("expire"), st.integers(1, 120)),
        st.tuples(st.just("reload")),
        st.tuples(st.just("changed"), st.booleans()),
    ),
    min_size=1,
    max_size=30,
)


def memory():
    """Memory that was used before: not zero, as TensorFlow hands it out."""
    full = [np.full((CAPACITY, d), 9.0, np.float32) for d in (D, D, D, 1, 1, 1)]
    return [
        RowMemory(w=full[0], slots={"m": full[1], "v": full[2]}, std=0.5, seed=3),
        RowMemory(w=full[3], slots={"m": full[4], "v": full[5]}),
    ]


def test_the_ids_of_this_test_share_no_counters():
    """So the counters are exact, and the reference may count in a dict."""
    starts = [int(hash_id(f, np.int64(i))) for f in range(FIELDS) for i in UNIVERSE]
    for shift in (0, 32):
        assert len({(s >> shift) % COUNTERS for s in starts}) == len(starts)


class Pair:
    """A table and the reference, which do the same."""

    def __init__(self, rules, max_rows, kind, window):
        self.arguments = {
            "capacity": CAPACITY,
            "max_rows": max_rows,
            "admission_filter": kind,
            "window": window,
            "counters": COUNTERS,
            "seed": 5,
        }
        self.rules, self.max_rows = rules, max_rows
        self.new_table()
        self.reference = Reference(
            tuple(r.admit for r in rules), tuple(r.ttl for r in rules), window, kind, 5
        )
        self.rows = {}  # (field, id) -> row
        self.delivered = set(), set()
        self.now = 0

    def new_table(self):
        self.table = GrowingTable(self.rules, memory=memory(), **self.arguments)
        self.changes = self.table.track_changes()

    def admit(self, batch, delays):
        late = [] if self.max_rows else delays  # what is oldest is obvious if nothing is late
        self.now += delays[0]
        times = [max(self.now - d, 0) for d in (late or [0] * 12)][: len(batch)]
        reference, table = self.reference, self.table
        new = reference.new_in(batch)
        wanted = len(reference.ids) + len(new) - (self.max_rows or CAPACITY)
        keep = {key for ids in batch for key in enumerate(ids)}
        may_go = reference.oldest(keep, wanted) if wanted > 0 else set()
        rows = table.admit(np.array(batch, np.int64), np.array(times))
        gone = {key for key in reference.ids if not self.present(key)}
        assert gone <= may_go and len(gone) == max(wanted, 0)
        self.drop(gone)
        reference.admit(batch, times, new)
        self.check_rows(batch, rows)
        for row in np.unique(rows[rows >= FIELDS]):  # a step
            for one in table.memory:
                one.w[row] += 1
                one.slots["m"][row], one.slots["v"][row] = 1, 2

    def present(self, key):
        ids = np.zeros((1, FIELDS), np.int64)
        ids[0, key[0]] = key[1]
        return self.table.lookup(ids)[0, key[0]] >= FIELDS

    def lookup(self, batch):
        before = self.table.statistics()
        self.check_rows(batch, self.table.lookup(np.array(batch, np.int64)))
        assert self.table.statistics() == before

    def check_rows(self, batch, rows):
        for ids, mine in zip(batch, rows.tolist()):
            for key, row in zip(enumerate(ids), mine):
                if key in self.reference.ids:
                    assert row >= FIELDS and self.rows.setdefault(key, row) == row
                else:
                    assert row == key[0]

    def expire(self, slice_):
        overdue, high_water = self.reference.overdue(), self.table.statistics().high_water
        gone = sum(self.table.expire(slice_) for _ in range(-(-high_water // slice_) + 1))
        assert gone == len(overdue)
        self.drop(overdue)

    def drop(self, keys):
        self.reference.drop(keys)
        self.rows = {key: row for key, row in self.rows.items() if key not in keys}

    def reload(self):
        """Into memory that is not zero, either."""
        state = {name: x.copy() for name, x in self.table.state().items()}
        self.new_table()
        self.table.restore(state)

    def changed(self, delivered):
        changes, reference = self.changes.collect(), self.reference
        known = changes.rows >= FIELDS
        keys = set(zip(changes.fields[known].tolist(), changes.ids[known].tolist()))
        gone = set(zip(*(x.tolist() for x in changes.gone)))
        assert keys == reference.changed and len(keys) == known.sum()
        assert gone == reference.gone
        if delivered:
            self.changes.clear()
            reference.changed, reference.gone = set(), set()

    def check(self):
        """The same ids, each with a row of its own, and in it what its own steps made."""
        table, reference = self.table, self.reference
        assert len(set(self.rows.values())) == len(reference.ids) == table.num_rows
        assert table.clock == reference.clock
        statistics = table.statistics()
        assert statistics.events == reference.events and statistics.refused == reference.refused
        w, m, v = table.memory[0].w, table.memory[0].slots["m"], table.memory[0].slots["v"]
        for (f, id_), row in self.rows.items():
            steps = reference.ids[f, id_].steps
            wanted = np.array(first_values(3, f, id_, D, 0.5)) + steps
            np.testing.assert_allclose(w[row], wanted, rtol=1e-5, atol=1e-6)
            assert (table.memory[1].w[row] == steps).all()
            assert (m[row] == (steps > 0)).all() and (v[row] == 2 * (steps > 0)).all()


@settings(max_examples=100)
@given(
    STEPS,
    st.lists(st.integers(1, 5), min_size=FIELDS, max_size=FIELDS),
    st.lists(st.sampled_from([0, 3, 20]), min_size=FIELDS, max_size=FIELDS),
    st.sampled_from([None, 40]),
    st.sampled_from(["count", "probabilistic"]),
    st.sampled_from([0, 7]),
)
def test_same_as_the_dict(steps, thresholds, ttl, max_rows, kind, window):
    rules = [FieldRules(admit=t, ttl=s) for t, s in zip(thresholds, ttl)]
    pair = Pair(rules, max_rows, kind, window)
    for name, *arguments in steps:
        getattr(pair, name)(*arguments)
        pair.check()


@pytest.mark.parametrize("max_rows", [None, 40])
def test_a_long_sequence(max_rows):
    """Long enough that every id comes, goes and comes back."""
    rng = np.random.default_rng(1)
    pair = Pair([FieldRules(admit=t, ttl=t * 9) for t in (1, 2, 5)], max_rows, "count", 50)
    for step in range(150):
        batch = [tuple(UNIVERSE[k] for k in ids) for ids in rng.integers(0, 30, (5, FIELDS))]
        pair.admit(batch, rng.integers(0, 9, 12).tolist())
        if step % 5 == 0:
            pair.expire(17)
            pair.check()
        if step % 20 == 0:
            pair.reload()
    statistics = pair.table.statistics()
    assert statistics.expired > 50 and (statistics.evicted > 50) == (max_rows is not None)
