"""A growing table whose state gets more fields: the same as a dict that goes on."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Reference

from cowclip_merlin.tables.growing_table import GrowingTable
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.tables.serving_table import ServingTable
from cowclip_merlin.tables.table_state import with_more_fields

CAPACITY = 60
RULES = [FieldRules(admit=2, ttl=6), FieldRules(ttl=5), FieldRules(), FieldRules(admit=3, ttl=4)]
IDS = st.integers(0, 12)


def batches(columns):
    return st.lists(st.lists(st.tuples(*[IDS] * columns), min_size=1, max_size=4), max_size=6)


def table_of(fields, columns=None):
    full = [np.full((CAPACITY, 2), 9.0, np.float32) for _ in "wmv"]
    memory = [RowMemory(w=full[0], slots={"m": full[1], "v": full[2]}, std=1.0, seed=3)]
    rules = RULES[:fields]
    return GrowingTable(
        rules, memory=memory, capacity=CAPACITY, max_rows=30, field_of_column=columns
    )


def admit(table, reference, found, first):
    """Train on batches, and drop what is old; both have the same ids then."""
    for step, events in enumerate(found, first):
        ids, times = np.array(events), [2 * step + i for i in range(len(events))]
        rows = table.admit(ids, np.array(times))
        reference.admit(events, times, reference.new_in(events))
        for w in (table.memory[0].w, table.memory[0].slots["m"]):
            w[rows] += step  # in place of a step
        overdue = reference.overdue()
        assert table.expire() == len(overdue)
        reference.drop(overdue)
        assert set(contents(table)) - {(f, "absent") for f in range(4)} == set(reference.ids)


def contents(table):
    """What each id has, and each shared row."""
    memory, rows = table.memory[0], range(len(table.state()["ids"]))
    owners = {r: (r, "absent") if r < table.num_fields else table.owner_of(r) for r in rows}
    seen = table.last_seen(np.arange(CAPACITY))
    return {
        owner: [
            *(x[r].tobytes() for x in (memory.w, memory.slots["m"], memory.slots["v"])),
            int(seen[r]),
        ]
        for r, owner in owners.items()
        if owner is not None
    }


def pairs(changes):
    return set(zip(changes.fields, changes.ids)), set(zip(*changes.gone))


@settings(deadline=None)
@given(before=batches(2), after=batches(4))
def test_all_goes_on_as_before(before, after):
    table, reference = table_of(2), Reference((2, 1), (6, 5))
    log = table.track_changes()
    admit(table, reference, before, 0)
    state = {name: np.array(x) for name, x in table.state().items()}
    grown = table_of(4)
    changes = grown.track_changes()
    grown.restore(with_more_fields(state, 4, None))
    known, now = contents(table), contents(grown)
    assert {owner: x for owner, x in now.items() if owner in known} == known
    nothing = [bytes(8)] * 3 + [0]
    assert {owner: now[owner] for owner in set(now) - set(known)} == {
        (2, "absent"): nothing,
        (3, "absent"): nothing,
    }
    assert pairs(changes.collect()) == pairs(log.collect())
    reference.admit_after, reference.ttl = (2, 1, 1, 3), (6, 5, 0, 4)
    admit(grown, reference, after, len(before))


def test_columns_that_share_a_field_are_no_new_field():
    table = table_of(2)
    table.admit(np.array([[7, 8], [7, 9]]), 0)
    state = {name: np.array(x) for name, x in table.state().items()}
    grown = table_of(2, (0, 1, 1))
    grown.restore(with_more_fields(state, 2, (0, 1, 1)))
    assert contents(grown) == contents(table)
    served = ServingTable(3, CAPACITY, [2])
    small = {name: state[name] for name in ("ids", "fields", "free", "numbers")}
    served.restore(with_more_fields(small | {"table0": state["table0.w"]}, 3, None))
    found = served.read(np.array([[7, 9, 5]]))[0][0]
    np.testing.assert_array_equal(found[:2], table.memory[0].w[table.lookup(np.array([[7, 9]]))][0])
    assert not found[2].any()
