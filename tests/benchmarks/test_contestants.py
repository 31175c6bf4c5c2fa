"""What other packages get to read in the comparison of defaults."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

MASK = (1 << 64) - 1


@pytest.fixture(scope="session")
def others(load):
    return load("contestants.with_defaults")


def hash_of(words):
    """The hash of a few whole numbers, with Python's own."""
    found = 0
    for each in words:
        found = ((found ^ each) * 0x9E3779B97F4A7C15) & MASK
        found ^= found >> 32
    return found >> 8


@settings(max_examples=20)
@given(
    ids=st.lists(st.tuples(*[st.integers(0, 2**31 - 1)] * 3), min_size=1, max_size=5),
    bits=st.integers(8, 22),
)
def test_a_row_has_a_one_for_each_id_and_each_pair(others, ids, bits):
    numbers = np.arange(2 * len(ids), dtype=np.float32).reshape(-1, 2) / 7
    rows = others.Rows(np.array(ids, np.int32), numbers, np.zeros(0), np.full(3, 2**31 - 1))
    expected = np.zeros((len(ids), (1 << bits) + 2))
    for i, row in enumerate(ids):
        for group in ((0,), (1,), (2,), *combinations(range(3), 2)):
            expected[i, hash_of([*group, *(row[j] for j in group)]) % (1 << bits)] += 1
        expected[i, -2:] = numbers[i]
    np.testing.assert_array_equal(others.crossed(rows, bits).toarray(), expected)


def test_pairs_of_ids_rarely_share_a_hash_value(others):
    ids = np.stack(np.meshgrid(np.arange(300), np.arange(300)), axis=-1).reshape(-1, 2)
    found = others.hashed((3, 5), ids, others.BITS)
    # 90,000 of 2^22 values at random: 89,042 different ones are expected
    assert 88_800 < len(np.unique(found)) < 89_300


def test_a_tenth_of_the_rows_is_held_out(others):
    ids = np.arange(50, dtype=np.int32)[:, None]
    rows = others.Rows(ids, np.zeros((50, 0)), np.arange(50) % 2, np.array([50]))
    fitted, scored = others.held_out(rows, 7)
    assert len(scored.label) == 5 and len(fitted.label) == 45
    assert sorted([*fitted.ids[:, 0], *scored.ids[:, 0]]) == [*range(50)]
    assert (scored.label == scored.ids[:, 0] % 2).all()
    assert (scored.ids != others.held_out(rows, 8)[1].ids).any()


def test_an_id_is_its_smoothed_click_rate_and_its_count(others):
    ids = np.array([[0, 1], [0, 2], [1, 2], [0, 0]], np.int32)
    numbers = np.array([[0.5], [0.25], [0.125], [1]], np.float32)
    rows = others.Rows(ids, numbers, np.array([1.0, 0, 0, 1]), np.array([3, 3]))
    new = others.Rows(np.array([[2, 2]], np.int32), numbers[:1], np.zeros(0), np.array([3, 3]))
    rates = [(2 + 5) / 13, 5 / 11, 5 / 10], [6 / 11, 6 / 11, 5 / 12]  # of no clicks in two rows
    counts = [3, 1, 0], [1, 1, 2]
    for asked in (rows, new):
        found = [[by[j][row[j]] for by in (rates, counts) for j in (0, 1)] for row in asked.ids]
        expected = np.column_stack([found, asked.numbers])
        np.testing.assert_allclose(others.encoded(rows, asked), expected)


def test_ids_without_a_hash_have_a_one_each(others):
    ids, numbers = np.array([[0, 2], [1, 0]], np.int32), np.array([[0.5], [0.25]], np.float32)
    rows = others.Rows(ids, numbers, np.zeros(0), np.array([2, 3]))
    expected = [[1, 0, 0, 0, 1, 0.5], [0, 1, 1, 0, 0, 0.25]]
    np.testing.assert_array_equal(others.one_hot(rows).toarray(), expected)


def test_vowpal_wabbit_reads_a_namespace_for_each_column(others):
    numbers = np.array([[0.5], [0.25]], np.float32)
    ids = np.array([[3, 4], [0, 9]], np.int32)
    rows = others.Rows(ids, numbers, np.array([1.0, 0.0]), np.array([9, 10]))
    lines = ["1 |a 3 |b 4 |N0 x:0.5", "-1 |a 0 |b 9 |N0 x:0.25"]
    assert [*others._lines(rows)] == lines
    test = others.Rows(ids, numbers, np.zeros(0), np.array([9, 10]))
    assert [*others._lines(test)] == [line.lstrip("-1") for line in lines]
