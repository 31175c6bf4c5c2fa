"""Growing tables and serving copies with multi-valued columns, against the slow reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Reference, keys_of

import cowclip_merlin as cc
from cowclip_merlin.batch import Ids
from cowclip_merlin.tables.growing_table import GrowingTable
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.tables.serving_table import ServingTable

CAPACITY, SEED = 300, 5
RULES = [FieldRules(), FieldRules(admit=2), FieldRules(admit=3)]
LISTS = st.lists(st.integers(0, 30), max_size=6)
BATCHES = st.lists(st.lists(st.tuples(LISTS, LISTS, LISTS), max_size=5), min_size=1, max_size=5)


def ids_of(events):
    """The ids of events, each a list of ids for each field."""
    lengths = [[len(ids) for ids in event] for event in events]
    values = [id_ for event in events for _, id_ in keys_of(event)]
    return Ids(np.array(values, np.int64), np.array(lengths, np.int32).reshape(-1, len(RULES)))


def grown(**more):
    memory = [RowMemory(w=np.zeros((CAPACITY, 2), np.float32), std=1.0)]
    return GrowingTable(RULES, memory=memory, capacity=CAPACITY, seed=SEED, index_cells=16, **more)


def check_rows(reference, events, rows, known):
    """Every id that the reference has admitted has a row of its own, the same in every batch."""
    keys = [key for event in events for key in keys_of(event)]
    assert rows.values.shape == (len(keys),)
    for key, row in zip(keys, rows.values.tolist(), strict=True):
        if key in reference.ids:
            assert row >= len(RULES) and known.setdefault(key, row) == row
        else:
            assert row == key[0]


@settings(deadline=None)
@given(batches=BATCHES, kind=st.sampled_from(["count", "probabilistic"]), window=st.integers(0, 3))
def test_rows_are_those_of_the_reference(batches, kind, window):
    window = window if kind == "count" else 0
    table, known = grown(admission_filter=kind, window=window), {}
    reference = Reference((1, 2, 3), (0, 0, 0), window, kind, SEED)
    for now, events in enumerate(batches):
        times = [now + i for i in range(len(events))]
        rows = table.admit(ids_of(events), np.array(times, np.int64))
        reference.admit(events, times, reference.new_in(events))
        check_rows(reference, events, rows, known)
        check_rows(reference, events, table.lookup(ids_of(events)), known)
        statistics = table.statistics()
        assert (statistics.events, statistics.refused) == (reference.events, reference.refused)
    assert len({*known.values()}) == len(known) == table.num_rows
    seen = table.last_seen(np.array([*known.values()], int))
    assert seen.tolist() == [reference.ids[key].seen for key in known]


def test_the_form_of_the_rows_is_that_of_the_ids():
    ids = np.array([[7, 8, 7], [9, 8, 7]])
    dense, several = grown(), grown()
    rows = dense.admit(ids, 0)
    np.testing.assert_array_equal(several.admit(Ids(ids), 0).values, rows)
    several = grown()
    listed = several.admit(Ids(ids).multi_valued(), 0)
    np.testing.assert_array_equal(listed.values, rows.ravel())
    np.testing.assert_array_equal(listed.lengths, np.ones((2, 3)))


def test_a_serving_copy_reads_a_row_for_each_id():
    table = grown()
    log, ids = table.track_changes(), ids_of([([7, 8, 7], [], [1]), ([], [5, 5], [])])
    rows = table.admit(ids, 0)
    copy, changes = ServingTable(len(RULES), CAPACITY, [2]), log.collect()
    copy.apply(changes, [table.memory[0].w[changes.rows]])
    np.testing.assert_array_equal(copy.read(ids)[0], table.memory[0].w[rows.values])
    assert copy.look_up(ids).lengths is ids.lengths


@pytest.mark.parametrize(
    "ids",
    [
        Ids(np.zeros(3, int), np.array([[1, 1, 0]])),
        Ids(np.zeros(3, int), np.array([[1, 3, -1]])),
        Ids(np.zeros(2, int), np.array([[1, 1]])),
    ],
)
def test_lengths_that_do_not_fit_are_refused(ids):
    with pytest.raises(cc.InputError):
        grown().admit(ids, 0)
