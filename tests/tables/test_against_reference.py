"""Sequences of admit, lookup, expire, evict, sync, save and load: the same as a dict.

Every layout of columns goes through it: one id in each column, lists, and columns that share a
field. A serving copy has the rows of the table as of its last sync.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Reference, first_values, ids_of, row_memory

from cowclip_merlin.tables import FieldRules, GrowingTable
from cowclip_merlin.tables.growing_table import with_more_fields
from cowclip_merlin.tables.id_map import hash_id
from cowclip_merlin.tables.serving_table import ServingTable

CAPACITY, D = 200, 3
UNIVERSE = [0, 1, -1, 2**63 - 1, -(2**63), *range(2, 27)]  # the ids of every field
COUNTERS = 1 << 14
LAYOUTS = {"one id": (0, 1, 2), "lists": (0, 1, 2), "shared": (0, 1, 0)}  # fields of the columns
IDS = st.lists(st.sampled_from(UNIVERSE), max_size=2)
BATCH = st.lists(st.tuples(IDS, IDS, IDS), min_size=1, max_size=6)
DELAYS = st.lists(st.integers(0, 9), min_size=6, max_size=6)
STEP = st.one_of(
    st.tuples(st.just("admit"), BATCH, DELAYS),
    st.tuples(st.just("lookup"), BATCH),
    st.tuples(st.just("expire"), st.integers(1, 120)),
    st.tuples(st.just("reload")),
    st.tuples(st.just("sync"), st.booleans()),
)
STEPS = st.lists(STEP, min_size=1, max_size=20)


def test_the_ids_of_this_test_share_no_counters():
    """So the counters are exact, and the reference may count in a dict."""
    starts = [int(hash_id(f, np.int64(i))) for f in range(3) for i in UNIVERSE]
    for shift in (0, 32):
        assert len({(s >> shift) % COUNTERS for s in starts}) == len(starts)


class Pair:
    """A table, the reference, which does the same, and a serving copy."""

    def __init__(
        self, rules, *, layout="one id", columns=None, max_rows=None, kind="count", window=0
    ):
        self.lists, self.columns = layout != "one id", columns or LAYOUTS[layout]
        self.settings = {
            "capacity": CAPACITY,
            "max_rows": max_rows,
            "admission_filter": kind,
            "window": window,
            "counters": COUNTERS,
            "seed": 5,
            "field_of_column": self.columns if layout == "shared" else None,
        }
        self.rules, self.max_rows = rules, max_rows
        self.new_table()
        admit, ttl = ([getattr(r, name) for r in rules] for name in ("admit", "ttl"))
        self.reference = Reference(tuple(admit), tuple(ttl), window, kind, 5)
        self.rows = {}  # (field, id) -> row
        self.now = 0
        self.copy, self.synced = self.new_copy(), {}

    @property
    def fields(self):
        return len(self.rules)

    def new_table(self):
        memory = [row_memory(CAPACITY, D, seed=3, std=0.5), row_memory(CAPACITY, 1, std=0.0)]
        self.table = GrowingTable(self.rules, memory=memory, **self.settings)
        self.changes = self.table.track_changes()

    def new_copy(self):
        columns = self.settings["field_of_column"]
        return ServingTable(self.fields, CAPACITY, [D, 1], field_of_column=columns)

    def events(self, batch):
        """The batch as this layout has it: one id in each column, or lists."""
        if self.lists:
            return batch
        return [[(ids or [7])[:1] for ids in event] for event in batch]

    def by_field(self, events):
        def of(field, event):
            pairs = zip(self.columns, event, strict=True)
            return [id_ for f, ids in pairs if f == field for id_ in ids]

        return [[of(field, event) for field in range(self.fields)] for event in events]

    def ids(self, events):
        """As lists, or as a matrix."""
        if self.lists:
            return ids_of(events, len(self.columns))
        return np.array([[ids[0] for ids in event] for event in events], np.int64)

    def admit(self, batch, delays):
        late = [] if self.max_rows else delays  # what is oldest is obvious if nothing is late
        self.now += delays[0]
        times = [max(self.now - d, 0) for d in (late or [0] * 6)][: len(batch)]
        reference, table, events = self.reference, self.table, self.events(batch)
        new = reference.new_in(self.by_field(events))
        wanted = len(reference.ids) + len(new) - (self.max_rows or CAPACITY)
        keep = {key for _, key in self.keys(events)}
        may_go = reference.oldest(keep, wanted) if wanted > 0 else set()
        rows = table.admit(self.ids(events), np.array(times))
        gone = {key for key in reference.ids if not self.present(key)}
        assert gone <= may_go and len(gone) == max(wanted, 0)
        self.drop(gone)
        reference.admit(self.by_field(events), times, new)
        rows = self.check_rows(events, rows)
        for row in np.unique(rows[rows >= self.fields]):  # a step
            for one in table.memory:
                one.w[row] += 1
                one.slots["m"][row], one.slots["v"][row] = 1, 2

    def keys(self, events):
        """Column, and field and id, of every occurrence in the order of the rows."""
        columns = [c for event in events for c, ids in enumerate(event) for _ in ids]
        values = [id_ for event in events for ids in event for id_ in ids]
        return [(c, (self.columns[c], id_)) for c, id_ in zip(columns, values, strict=True)]

    def present(self, key):
        place, ids = self.columns.index(key[0]), np.zeros((1, len(self.columns)), np.int64)
        ids[0, place] = key[1]
        return self.table.lookup(ids)[0, place] >= self.fields

    def lookup(self, batch):
        before, events = self.table.statistics(), self.events(batch)
        self.check_rows(events, self.table.lookup(self.ids(events)))
        assert self.table.statistics() == before

    def check_rows(self, events, found):
        rows = np.asarray(getattr(found, "values", found)).reshape(-1)
        for (_, key), row in zip(self.keys(events), rows.tolist(), strict=True):
            if key in self.reference.ids:
                assert row >= self.fields and self.rows.setdefault(key, row) == row
            else:
                assert row == key[0]
        return rows

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
        copied = {name: x.copy() for name, x in self.copy.state().items()}
        self.copy = self.new_copy()
        self.copy.restore(copied)

    def sync(self, delivered):
        """What changed since the last delivery reaches the copy."""
        changes, reference = self.changes.collect(), self.reference
        known = changes.rows >= self.fields
        keys = set(zip(changes.fields[known].tolist(), changes.ids[known].tolist()))
        gone = set(zip(*(x.tolist() for x in changes.gone)))
        assert keys == reference.changed and len(keys) == known.sum()
        assert gone == reference.gone
        self.copy.apply(changes, [one.w[changes.rows] for one in self.table.memory])
        self.synced = {key: self.table.memory[0].w[row].copy() for key, row in self.rows.items()}
        self.synced |= {(f, None): self.table.memory[0].w[f].copy() for f in range(self.fields)}
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
        fields = [f for f, _ in reference.ids]
        assert statistics.rows == tuple(fields.count(f) for f in range(self.fields))
        w, m, v = table.memory[0].w, table.memory[0].slots["m"], table.memory[0].slots["v"]
        for (f, id_), row in self.rows.items():
            steps = reference.ids[f, id_].steps
            wanted = np.array(first_values(3, f, id_, D, 0.5)) + steps
            np.testing.assert_allclose(w[row], wanted, rtol=1e-5, atol=1e-6)
            assert (table.memory[1].w[row] == steps).all()
            assert (m[row] == (steps > 0)).all() and (v[row] == 2 * (steps > 0)).all()
        rows = np.array([*self.rows.values()], int)
        assert table.last_seen(rows).tolist() == [reference.ids[key].seen for key in self.rows]
        self.check_copy()

    def check_copy(self):
        """What it read at its last sync, whatever the table has done since."""
        every = np.array([UNIVERSE] * len(self.columns)).T
        found = self.copy.read(every)[0]
        for c, f in enumerate(self.columns):
            for i, id_ in enumerate(UNIVERSE):
                wanted = self.synced.get((f, id_), self.synced.get((f, None), np.zeros(D)))
                assert np.array_equal(found[i, c], wanted)
        assert len(self.copy) == sum(id_ is not None for _, id_ in self.synced)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=50)
@given(
    STEPS,
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
    st.lists(st.sampled_from([0, 3, 20]), min_size=3, max_size=3),
    st.sampled_from([None, 40]),
    st.sampled_from(["count", "probabilistic"]),
    st.sampled_from([0, 7]),
)
def test_same_as_the_dict(layout, steps, thresholds, ttl, max_rows, kind, window):
    rules = [FieldRules(admit=t, ttl=s) for t, s in zip(thresholds, ttl)]
    rules = rules[: max(LAYOUTS[layout]) + 1]
    pair = Pair(rules, layout=layout, max_rows=max_rows, kind=kind, window=window)
    for name, *arguments in steps:
        getattr(pair, name)(*arguments)
        pair.check()


def play(pair, rng, steps):
    for step in range(steps):
        batch = [[[UNIVERSE[k]] for k in ids] for ids in rng.integers(0, 30, (5, pair.fields))]
        pair.admit(batch, rng.integers(0, 9, 6).tolist())
        if step % 5 == 0:
            pair.expire(17)
            pair.check()
        if step % 20 == 0:
            pair.reload()
            pair.sync(step % 40 == 0)


@pytest.mark.parametrize("max_rows", [None, 40])
def test_a_long_sequence(max_rows):
    """Long enough that every id comes, goes and comes back."""
    rules = [FieldRules(admit=t, ttl=t * 9) for t in (1, 2, 5)]
    pair = Pair(rules, max_rows=max_rows, window=50)
    play(pair, np.random.default_rng(1), 150)
    statistics = pair.table.statistics()
    assert statistics.expired > 50 and (statistics.evicted > 50) == (max_rows is not None)


@pytest.mark.parametrize("steps", [0, 1, 30])
def test_with_more_fields_all_goes_on_as_before(steps):
    """Rows of ids move, with all that they hold; what new fields read is 0."""
    rng, rules = np.random.default_rng(steps), [FieldRules(admit=2, ttl=30), FieldRules(ttl=20)]
    pair = Pair(rules, columns=(0, 1))
    play(pair, rng, steps)
    state, copied = (
        with_more_fields({name: np.array(x) for name, x in saved.items()}, 4, None)
        for saved in (pair.table.state(), pair.copy.state() | {"numbers": np.array([2] * 6)})
    )
    absent = [one.w[:2].copy() for one in pair.table.memory]
    pair.rules, pair.columns = [*rules, FieldRules(), FieldRules(admit=3, ttl=40)], (0, 1, 2, 3)
    pair.new_table()
    pair.table.restore(state)
    pair.copy = pair.new_copy()
    pair.copy.restore(copied)
    pair.rows = {key: row + 2 for key, row in pair.rows.items()}
    pair.reference.admit_after, pair.reference.ttl = (2, 1, 1, 3), (30, 20, 0, 40)
    for one, before in zip(pair.table.memory, absent):
        assert np.array_equal(one.w[:2], before) and not one.w[2:4].any()
    pair.check()
    play(pair, rng, 30)
