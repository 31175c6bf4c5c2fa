import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.ingest import Split, first_test_time, is_test, position_hash

MASK = 2**64 - 1


def splitmix64(x):
    """Python integers, from the published definition."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


@given(st.lists(st.integers(0, 2**63), min_size=1, max_size=20), st.integers(0, 2**40))
def test_the_hash_is_splitmix64(positions, seed):
    got = position_hash(np.array(positions, np.uint64), seed)
    expected = [splitmix64((p + seed * 0x9E3779B97F4A7C15) & MASK) for p in positions]
    assert got.tolist() == expected


@given(st.integers(1, 500), st.lists(st.integers(0, 500), max_size=5), st.integers(0, 99))
def test_any_cutting_gives_the_same_split(n, cuts, seed):
    split = Split(test_fraction=0.3, seed=seed)
    position = np.arange(n, dtype=np.uint64)
    parts = np.split(position, sorted(min(c, n) for c in cuts))
    whole = is_test(position, split)
    assert np.concatenate([is_test(part, split) for part in parts]).tolist() == whole.tolist()


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.9])
def test_the_share_of_test_rows(fraction):
    n = 200_000
    test = is_test(np.arange(n, dtype=np.uint64), Split(test_fraction=fraction, seed=3))
    assert abs(test.mean() - fraction) < 5 * np.sqrt(fraction * (1 - fraction) / n)


def test_seeds_differ():
    position = np.arange(1000, dtype=np.uint64)
    a, b = (is_test(position, Split(test_fraction=0.5, seed=s)) for s in (1, 2))
    assert 300 < (a != b).sum() < 700


@given(st.integers(1, 1000), st.floats(0.01, 0.99))
def test_by_time_the_last_rows_are_test(n, fraction):
    split = Split(how="time", test_fraction=fraction)
    test = is_test(np.arange(n, dtype=np.uint64), split, total=n)
    assert test.tolist() == sorted(test.tolist())
    assert test.sum() == n - round(n * (1 - fraction))


@given(st.lists(st.integers(-3, 9), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_by_times_rows_of_one_time_stay_together(times, fraction):
    """The obvious way: try each time, and keep the one with the nearest share of test rows."""
    split, array = Split(how="time", test_fraction=fraction), np.array(times)
    if len(set(times)) == 1:
        with pytest.raises(InputError, match="all rows have the same time"):
            first_test_time(array, split)
        return
    wrong = {
        time: abs(sum(t < time for t in times) - len(times) * (1 - fraction))
        for time in sorted(set(times))[1:]
    }
    assert wrong[first_test_time(array, split)] == min(wrong.values())
