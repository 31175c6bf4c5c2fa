"""Rows of a batch's ids, against lists."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.batch import Ids

FIELDS = 3
ROW = st.tuples(*[st.lists(st.integers(-9, 9), max_size=3)] * FIELDS)
ROWS = st.lists(ROW, max_size=6)


def ids_of(rows):
    lengths = [[len(ids) for ids in row] for row in rows]
    values = [id_ for row in rows for ids in row for id_ in ids]
    return Ids(np.array(values, np.int64), np.array(lengths, np.int32).reshape(-1, FIELDS))


def assert_equal(ids, rows):
    assert (ids.num_rows, ids.num_fields) == (len(rows), FIELDS)
    np.testing.assert_array_equal(ids.values, ids_of(rows).values)
    np.testing.assert_array_equal(ids.lengths, ids_of(rows).lengths)


@settings(deadline=None)
@given(rows=ROWS, data=st.data())
def test_take(rows, data):
    ids, n = ids_of(rows), len(rows)
    mask = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    assert_equal(ids.take(np.array(mask, bool)), [row for row, kept in zip(rows, mask) if kept])
    first, end = sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))
    assert_equal(ids.take(slice(first, end)), rows[first:end])
    numbers = data.draw(st.lists(st.integers(0, n - 1), max_size=8)) if n else []
    assert_equal(ids.take(np.array(numbers, int)), [rows[i] for i in numbers])


@settings(deadline=None)
@given(parts=st.lists(ROWS, min_size=1, max_size=4), dense=st.integers(0, 3))
def test_concatenate(parts, dense):
    one_each = np.arange(dense * FIELDS).reshape(dense, FIELDS)
    whole = Ids.concatenate([Ids(one_each), *map(ids_of, parts)])
    rows = [[[id_] for id_ in row] for row in one_each.tolist()]
    assert_equal(whole, [*rows, *(row for part in parts for row in part)])


def test_one_id_per_row_stays_a_matrix():
    ids = Ids(np.arange(6).reshape(2, 3))
    assert (ids.num_rows, ids.num_fields) == (2, 3)
    whole = Ids.concatenate([ids, ids.take(np.array([False, True]))])
    assert whole.lengths is None and whole.values.tolist() == [[0, 1, 2], [3, 4, 5], [3, 4, 5]]
