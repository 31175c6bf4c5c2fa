"""Ids that go: by time, by the bound on rows, in slices; and what a full table says."""

import numpy as np
import pytest
from reference import column, free
from reference import grown as table

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import FieldRules


def has(grown, *ids):
    return [bool(row >= grown.num_fields) for row in grown.lookup(column(*ids))[:, 0]]


def test_the_oldest_go_and_the_bound_holds():
    """An endless stream of new ids: rows stay bounded, and recent ids stay."""
    grown = table(free(1), 1101, max_rows=1000)
    for batch in range(400):
        ids = np.arange(batch * 50, batch * 50 + 50)
        grown.admit(ids[:, None], batch)
        recent = np.arange(max(0, ids[-1] - 900), ids[-1] + 1)  # 1% and a batch are older
        assert all(has(grown, *recent)) and grown.num_rows <= 1000
    statistics = grown.statistics()
    assert statistics.high_water == 1001 and statistics.evicted == 400 * 50 - 1000
    assert statistics.rows == (1000,)


def test_ids_of_the_batch_stay_and_too_large_a_batch_is_refused():
    grown = table(free(1), 100, max_rows=10)
    rows = grown.admit(np.arange(10)[:, None], 5)
    # 0 to 4 are the oldest by their late event, but they are in the batch.
    later = grown.admit(np.arange(5, 15)[:, None], 3)
    assert later[:5].tolist() == rows[5:].tolist() and len(set(later[:, 0].tolist())) == 10
    with pytest.raises(InputError, match=r"2 more .* max_rows allows 10"):
        grown.admit(column(*range(5, 15), 90, 91), 6)
    assert all(has(grown, *range(5, 15))) and has(grown, 90, 91) == [False, False]


def test_a_field_keeps_its_floor():
    rules = [FieldRules(min_rows=5), FieldRules()]
    grown = table(rules, 102, max_rows=60)
    grown.admit(np.stack([np.arange(8), np.arange(8)], 1), 0)  # the oldest of both fields
    for batch in range(1, 100):
        grown.admit(np.stack([np.zeros(8, int), np.arange(batch * 8, batch * 8 + 8)], 1), batch)
    assert grown.statistics().rows[0] == 5 and grown.num_rows == 60


def test_a_full_table_without_a_bound_says_so_and_is_whole():
    grown = table(free(1), 5)
    grown.admit(column(1, 2), 0)
    with pytest.raises(InputError, match=r"full: 2 ids .* 3 more .* capacity allows 4; .*max_rows"):
        grown.admit(column(2, 3, 4, 5), 0)
    assert has(grown, 1, 2, 3, 4, 5) == [True, True, False, False, False]
    assert sorted(grown.admit(column(3, 4, 1), 0)[:, 0].tolist()) == [1, 3, 4]


def test_a_full_table_drops_what_is_overdue_first():
    grown = table([FieldRules(ttl=10)], 5)
    grown.admit(column(1, 2, 3), 0)
    grown.admit(column(3, 4), 10)
    grown.admit(column(1, 5), 10)  # 1 comes back in time, 2 is overdue
    assert has(grown, 1, 2, 3, 4, 5) == [True, False, True, True, True]
    assert grown.statistics().expired == 1


def test_what_is_overdue_stays_while_a_batch_reads_it():
    """By its late event 1 is still overdue, and 2 is overdue by the batch's own time."""
    grown = table([FieldRules(ttl=10)], 5)
    rows = grown.admit(column(1, 2, 3, 4), np.array([0, 0, 0, 9]))
    later = grown.admit(column(1, 5), np.array([1, 11]))
    assert later[0] == rows[0] and later[1] in rows[1:3]
    assert has(grown, 1, 2, 3, 4, 5) == [True, False, False, True, True]
    assert grown.expire() == 1 and not has(grown, 1)[0]


def test_the_oldest_go_even_if_most_rows_may_not():
    """99.5% of the rows are of a field that keeps its ids."""
    grown = table([FieldRules(min_rows=19_900), FieldRules()], 20_003, max_rows=20_000)
    users = np.arange(19_900)
    grown.insert(np.zeros(len(users), int), users, 0)
    grown.insert(np.ones(100, int), np.arange(100), np.arange(1000, 900, -1))
    grown.insert(np.array([0]), np.array([0]), 2000)  # nothing changes
    grown.admit(np.array([[0, 500]]), 2000)
    found = grown.lookup(np.stack([np.zeros(100, int), np.arange(100)], axis=1))[:, 1] >= 2
    assert found.sum() == 99 and not found[99]
