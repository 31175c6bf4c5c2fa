"""Deciles by counts in the training data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.contrib.diagnostics.record import compute_deciles, decile_edges


@given(
    counts=st.lists(st.integers(0, 200), min_size=1, max_size=60).filter(any),
    batch=st.integers(1, 300),
)
@settings(max_examples=100)
def test_edges_are_the_least_counts_that_reach_each_tenth(counts, batch):
    rows = 200
    present = {c: 1 - (1 - c / rows) ** batch for c in counts}
    total = sum(present[c] for c in counts)
    found = decile_edges(np.array(counts), rows=rows, batch_size=batch)
    for tenth, edge in enumerate(found.tolist(), 1):
        up_to = sum(present[c] for c in counts if c <= edge)
        below = sum(present[c] for c in counts if c < edge)
        assert up_to >= total * tenth / 10 - 1e-9 * total
        assert below <= total * tenth / 10 + 1e-9 * total


@given(counts=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=30), min_size=1))
@settings(max_examples=50)
def test_deciles_rise_with_the_count_and_equal_counts_stay_together(counts):
    arrays = [np.array(each) for each in counts]
    found, count = compute_deciles(arrays, rows=100, batch_size=8), np.concatenate(arrays)
    order = np.argsort(count, kind="stable")
    assert (np.diff(found.of_row[order].astype(int)) >= 0).all()
    for value in np.unique(count):
        assert len(np.unique(found.of_row[count == value])) == 1
    for d in range(10):
        mine = count[(found.of_row == d) & (count > 0)]
        assert (found.least[d], found.most[d]) == (
            (mine.min(), mine.max()) if len(mine) else (0, 0)
        )


def test_a_decile_is_a_tenth_of_the_distinct_rows_of_a_batch():
    """On ids drawn independently from a power law, over many batches."""
    rng, size, batch = np.random.default_rng(0), 20_000, 512
    log = np.minimum(rng.zipf(1.2, 100_000), size) - 1
    found = compute_deciles([np.bincount(log, minlength=size)], rows=len(log), batch_size=batch)
    shares = np.zeros(10)
    for first in range(0, len(log), batch):
        ids = np.unique(log[first : first + batch])
        shares += np.bincount(found.of_row[ids], minlength=10) / len(ids)
    shares /= len(range(0, len(log), batch))
    # The rarest ids all have count 1: they are one group, larger than a tenth.
    assert shares.sum() == pytest.approx(1)
    cumulated, tenths = np.cumsum(shares), np.arange(1, 11) / 10
    held = shares > 0
    np.testing.assert_allclose(cumulated[held][-4:], tenths[held][-4:], atol=0.03)
