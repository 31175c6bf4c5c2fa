"""Counters never count low; the probabilistic filter has the rate it says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import grown

from cowclip_merlin.tables import FieldRules
from cowclip_merlin.tables.admission import EVENTS, admits, count_up, end_event, new_admission
from cowclip_merlin.tables.id_map import hash_id


def start_of(id_):
    return np.uint64(hash_id(0, np.int64(id_)))


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(2, 40),
    st.sampled_from([1, 4, 16, 64]),
    st.sampled_from([0, 5, 50]),
)
def test_counters_never_count_low(seed, ids, width, window):
    """Far too few counters: they count high, but no id is counted low or let in late."""
    state, exact = new_admission([200], window=window, counters=width), {}
    for events, id_ in enumerate(np.random.default_rng(seed).integers(0, ids, 200).tolist(), 1):
        exact[id_] = exact.get(id_, 0) + 1
        assert count_up(state.counters, start_of(id_)) >= exact[id_]
        end_event(state)
        if window and events % window == 0:
            exact = {key: count // 2 for key, count in exact.items()}


def test_a_count_stops_at_its_byte():
    state = new_admission([255], counters=8)
    counts = [count_up(state.counters, np.uint64(1)) for _ in range(300)]
    assert counts == [*range(1, 256), *[255] * 45]


def test_enough_counters_are_exact():
    """Ten times as many counters as ids: a thousandth of the ids or fewer is counted high."""
    state, ids = new_admission([2], counters=1 << 17), range(10_000)
    high = sum(count_up(state.counters, start_of(i)) > 1 for i in ids)
    assert high <= 100


@pytest.mark.parametrize("threshold", [2, 5, 20])
def test_95_percent_are_in_after_t_occurrences(threshold):
    state = new_admission([threshold], kind="probabilistic", seed=1)
    waiting = set(range(4000))
    for _ in range(threshold):
        for id_ in sorted(waiting):
            if admits(state, start_of(id_), 0, np.int64(id_)):
                waiting.remove(id_)
        end_event(state)
    assert abs(len(waiting) / 4000 - 0.05) < 0.012  # 3.5 standard deviations
    assert state.totals[EVENTS] == threshold


def table(**options):
    return grown([FieldRules(admit=3), FieldRules()], 50, **options)


@pytest.mark.parametrize("absent", ["trained", "zeros"])
def test_what_an_id_without_a_row_reads(absent):
    """A row of its field, trained or zeros; no call writes it, since a step may be using it."""
    grown, ids = table(absent=absent), np.array([[7, 1]])
    w, m, v = grown.memory[0].w, grown.memory[0].slots["m"], grown.memory[0].slots["v"]
    (row,) = grown.admit(ids, 0)[:, 0]
    assert row == 0 and (m[0] == 0).all() and (v[0] == 0).all()
    assert (w[0] == 0).all() == (absent == "zeros")
    before = w[0].copy()
    w[0] += 1  # a step
    m[0] += 1
    for read in (lambda: grown.admit(ids, 0), lambda: grown.lookup(ids)):
        assert read()[0, 0] == 0
        assert np.array_equal(w[0], before + 1) and (m[0] == 1).all()


def test_an_empty_batch_is_no_event():
    grown = table()
    assert grown.admit(np.zeros((0, 2), int), 5).shape == (0, 2)
    assert grown.clock == 0 and grown.statistics().events == 0
