"""Columns that share a field of a growing table and of a serving copy, against the reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Reference

import cowclip_merlin as cc
from cowclip_merlin.batch import Ids
from cowclip_merlin.tables.growing_table import GrowingTable
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.tables.serving_table import ServingTable

CAPACITY, SHARED = 100, (0, 1, 0)
RULES = [FieldRules(admit=2, ttl=4), FieldRules(ttl=7)]
LISTS = st.lists(st.integers(0, 12), max_size=4)
BATCHES = st.lists(st.lists(st.tuples(LISTS, LISTS, LISTS), max_size=4), min_size=1, max_size=6)


def ids_of(events):
    lengths = [[len(ids) for ids in event] for event in events]
    values = [id_ for event in events for ids in event for id_ in ids]
    return Ids(np.array(values, np.int64), np.array(lengths, np.int32).reshape(-1, len(SHARED)))


def grown(rules=RULES, shared=SHARED):
    memory = [RowMemory(w=np.zeros((CAPACITY, 2), np.float32), std=1.0)]
    return GrowingTable(rules, memory=memory, capacity=CAPACITY, field_of_column=shared)


def check_rows(reference, events, rows):
    """An id has one row in all columns of its field, and no other id has it."""
    keys = [(SHARED[c], id_) for event in events for c, ids in enumerate(event) for id_ in ids]
    row_of = {}
    for key, row in zip(keys, rows.values.tolist(), strict=True):
        if key in reference.ids:
            assert row >= len(RULES) and row_of.setdefault(key, row) == row
        else:
            assert row == key[0]
    assert len({*row_of.values()}) == len(row_of)


@settings(deadline=None)
@given(batches=BATCHES)
def test_columns_of_a_field_are_counted_dropped_and_synced_together(batches):
    table, reference = grown(), Reference((2, 1), (4, 7))
    log, copy = table.track_changes(), ServingTable(2, CAPACITY, [2], field_of_column=SHARED)
    for step, events in enumerate(batches):
        ids, times = ids_of(events), [3 * step + i for i in range(len(events))]
        by_field = [(a + c, b) for a, b, c in events]
        rows = table.admit(ids, np.array(times, np.int64))
        reference.admit(by_field, times, reference.new_in(by_field))
        check_rows(reference, events, rows)
        overdue = reference.overdue()
        assert table.expire() == len(overdue)
        reference.drop(overdue)
        check_rows(reference, events, table.lookup(ids))
        changes = log.collect()
        copy.apply(changes, [table.memory[0].w[changes.rows]])
        log.clear()
        wanted = table.memory[0].w[table.lookup(ids).values]
        np.testing.assert_array_equal(copy.read(ids)[0], wanted)
        assert len(copy) == table.num_rows == len(reference.ids)
    restored = grown()
    restored.restore(table.state())
    np.testing.assert_array_equal(restored.lookup(ids).values, table.lookup(ids).values)


def test_a_matrix_of_ids_keeps_its_form():
    table = grown([FieldRules()] * 2)
    ids = np.array([[7, 8, 7], [9, 8, 8]])
    rows = table.admit(ids, 0)
    assert rows.tolist() == [[2, 3, 2], [4, 3, 5]]
    np.testing.assert_array_equal(table.lookup(Ids(ids)).values, rows)
    copy, changes = ServingTable(2, 9, [2], field_of_column=SHARED), table.track_changes().collect()
    copy.apply(changes, [table.memory[0].w[changes.rows]])
    np.testing.assert_array_equal(copy.read(ids)[0], table.memory[0].w[rows])
    assert copy.look_up(ids).shape == ids.shape


@pytest.mark.parametrize(
    ("saved", "now", "words"),
    [
        ((0, 1, 0), (0, 1, 1), "the fields 0, 1, 0, those of this one 0, 1, 1; "),
        ((0, 1, 0), None, "the fields 0, 1, 0, those of this one 0, 1; "),
        (None, (0, 1, 0), "the fields 0, 1, those of this one 0, 1, 0; "),
    ],
)
def test_a_table_of_other_columns_is_refused(saved, now, words):
    with pytest.raises(cc.InputError, match=words):
        grown(shared=now).restore(grown(shared=saved).state())


def test_ids_of_another_number_of_columns_are_refused():
    for table in (grown(), ServingTable(2, 9, [2], field_of_column=SHARED)):
        look_up = getattr(table, "lookup", None) or table.look_up
        with pytest.raises(cc.InputError, match=r"shape \(1, 2\); give \[rows, 3\]"):
            look_up(np.zeros((1, 2), int))
