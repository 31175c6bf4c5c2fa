"""Replays of missed steps by numba: against the reference, step by step, and where they end."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import (
    EVERY,
    dims,
    epsilons_of,
    seeds,
    state,
    wide,
)

from cowclip_merlin import kernels
from cowclip_merlin.kernels import RowSettings

ref, fast = kernels.load("reference"), kernels.load("numba")
ROWS, L2 = 300, 1e-4


def rows_of_any_kind(d):
    """Weights and moments [ROWS, d]: usual ones, zeros, huge ones, and some that are not finite."""
    rng = np.random.default_rng(d)
    w, m = rng.normal(0, 1e-2, (ROWS, d)), rng.normal(0, 1e-3, (ROWS, d))
    v = 1e-4 * rng.random((ROWS, d))
    w[:2], v[:20] = 0, 0
    w[2:4, 0], w[4:6, -1], m[6:8, 0], v[8:10, 0] = np.nan, (np.inf, 1e30), np.inf, np.nan
    return [x.astype(np.float32) for x in (w, m, v)]


def steps_of_absent_rows(rows, alphas, settings):
    """Make the steps one at a time, in place; return the clip factors [steps, ROWS]."""
    every, starts = np.arange(ROWS, dtype=np.int32), np.zeros(ROWS + 1, np.int32)
    nothing = np.zeros_like(rows[0])
    return np.array(
        [fast.step_rows(*rows, every, nothing, starts, alpha, settings) for alpha in alphas]
    )


@pytest.mark.parametrize("d", [1, 3, 11, 64])
@pytest.mark.parametrize("clip", ["none", "cowclip", "column"])
def test_a_replay_has_the_bits_of_its_steps(d, clip):
    rows = rows_of_any_kind(d)
    middle = float(np.median(2 * L2 * np.linalg.norm(rows[0][20:], axis=1)))
    settings = RowSettings(l2=L2, clip=clip, r=1e-6, zeta=middle / d**0.5, bound=middle)
    alphas = np.random.default_rng(0).uniform(0, 1e-3, 31).astype(np.float32)
    expected = [x.copy() for x in rows]
    factors = steps_of_absent_rows(expected, alphas, settings)
    fast.replay_rows(*rows, np.zeros(ROWS, np.int32), alphas, len(alphas), settings)
    for a, b in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    clipped = (factors < 1).mean()
    assert clipped == 0 if clip == "none" else 0.1 < clipped < 0.9


def trained_rows(rng, u, d):
    """Rows as training leaves them, and with moments of any size, and some that are all 0."""
    scale = 10.0 ** rng.uniform(-6, -1, (u, d))
    v = (scale * rng.uniform(0.03, 3, (u, d))) ** 2
    rows = [rng.normal(0, 1e-2, (u, d)), scale * rng.normal(size=(u, d)), v]
    for x in rows:
        x[::7] = 0
    return [x.astype(np.float32) for x in rows]


def replay_every_step(rows, alphas, values):
    """The same kernel, without an early end."""
    expected = [x.copy() for x in rows]
    with patch.object(fast, "_largest_rate", lambda *_: -1.0):
        fast.replay_rows(*expected, np.zeros(len(rows[0]), np.int32), alphas, len(alphas), values)
    return expected


@settings(max_examples=20)
@given(
    st.integers(1, 60), dims, st.integers(100, 4000), seeds,
    st.sampled_from([(0.9, 0.999), (0.7, 0.872), (0.0, 0.5), (0.9, 0.811), (0.99, 0.9999)]),
    st.sampled_from(["none", "cowclip", "column"]),
)  # fmt: skip
def test_without_l2_a_replay_that_ends_early_has_all_bits_of_the_weights(
    u, d, steps, seed, betas, clip
):
    rng = np.random.default_rng(seed)
    rows, values = trained_rows(rng, u, d), replays_with(betas, clip, l2=0.0)
    warm_up = np.minimum(1, np.arange(1, steps + 1) / rng.integers(1, steps))
    alphas = (1e-3 * warm_up * rng.uniform(0.5, 1, steps)).astype(np.float32)
    alphas[rng.random(steps) < 0.1] = -1  # refused steps
    expected = replay_every_step(rows, alphas, values)
    last = np.zeros(u, np.int32)
    fast.replay_rows(*rows, last, alphas, steps, values)
    np.testing.assert_array_equal(rows[0], expected[0])
    np.testing.assert_allclose(rows[1], expected[1], rtol=1e-3, atol=1e-30)
    np.testing.assert_allclose(rows[2], expected[2], rtol=1e-3, atol=1e-30)


@pytest.mark.parametrize("l2", [0.0, 1e-6])
def test_rows_come_to_rest_with_epsilons_of_steps(l2):
    """The smallest that is still to come decides."""
    rng, values = np.random.default_rng(3), RowSettings(l2=l2, epsilon=1e-6, clip="none")
    rows, alphas = trained_rows(rng, 6, 3), np.full(4000, 1e-3, np.float32)
    slow, epsilons = wide(rows), epsilons_of(4000, values)
    for last in (np.zeros(6, np.int32), np.array([0, 40, 200, 900, 3000, 4000], np.int32)):
        fast.replay_rows(*rows, last.copy(), alphas, 4000, values, epsilons=epsilons)
        ref.replay_rows(*slow, last, alphas, 4000, values, epsilons=epsilons)
        np.testing.assert_allclose(rows[0], slow[0], rtol=1e-5, atol=2e-7)


def replays_with(betas, clip, l2):
    where = {"r": 1e-6, "zeta": 0.0, "bound": 1e-8}  # both clips cut L2's gradient
    return RowSettings(l2=l2, clip=clip, beta_1=betas[0], beta_2=betas[1], **where)


@EVERY
@given(
    st.integers(1, 30), dims, st.integers(100, 6000), seeds,
    st.sampled_from([1e-6, 1e-5, 1e-4]), st.sampled_from(["none", "cowclip", "column"]),
)  # fmt: skip
def test_with_l2_a_replay_ends_where_weights_are_0(u, d, steps, seed, l2, clip):
    rng = np.random.default_rng(seed)
    rows, values = trained_rows(rng, u, d), replays_with((0.9, 0.999), clip, l2)
    alphas = rng.uniform(0.5e-4, 1e-4, steps).astype(np.float32)
    expected = replay_every_step(rows, alphas, values)
    fast.replay_rows(*rows, np.zeros(u, np.int32), alphas, steps, values)
    largest = 1e-4  # one step of Adam
    np.testing.assert_allclose(rows[0], expected[0], rtol=0, atol=1e-7 * largest)
    np.testing.assert_allclose(rows[1], expected[1], rtol=0, atol=1e-7 * 1e-4)
    np.testing.assert_allclose(rows[2], expected[2], rtol=1e-3, atol=1e-14)


@pytest.mark.parametrize(("u", "d"), [(5, 1), (1, 5)])
def test_a_number_at_rest_does_not_wait_for_those_before_it(u, d):
    """Of a chunk or of a row: those that start near 0 are 0 long before the others."""
    start = np.array([1.0, 1e-6, 0.5, 1e-6, 1e-3], np.float32).reshape(u, d)
    rows = [start, np.zeros_like(start), np.zeros_like(start)]
    alphas, values = np.full(1500, 1e-4, np.float32), RowSettings(l2=1e-4)
    expected = replay_every_step(rows, alphas, values)
    fast.replay_rows(*rows, np.zeros(u, np.int32), alphas, len(alphas), values)
    np.testing.assert_array_equal(rows[0].ravel()[[1, 3]], 0)
    assert (expected[0] != 0).all() and (rows[0].ravel()[[0, 2]] > 0.1).all()
    np.testing.assert_allclose(rows[0], expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(rows[2], expected[2], rtol=1e-3, atol=1e-30)


def test_a_square_too_small_for_a_normal_number_is_0():
    """It would take a CPU a hundred cycles, in every step of a weight that is almost 0."""
    w = np.full((4, 8), 1e-17, np.float32)  # its gradient is 2e-21, and the moment would be 4e-45
    rows = [w, np.zeros_like(w), np.zeros_like(w)]
    fast.replay_rows(*rows, np.zeros(4, np.int32), np.full(9, 1e-9, "f"), 9, RowSettings(l2=1e-4))
    assert (rows[2] == 0).all() and (rows[1] != 0).all()


def test_a_replay_ends_early_only_where_that_is_right():
    rng, rates = np.random.default_rng(5), np.full(20_000, 1e-4, np.float32)
    for values, ends in (
        (RowSettings(l2=1e-5), True),
        (RowSettings(l2=1e-3), False),  # weights near 0 swing
        (RowSettings(beta_1=0.9, beta_2=0.81), False),  # |m| / sqrt(v) does not fall
        (RowSettings(), True),
    ):
        rows = trained_rows(rng, 50, 4)
        rows[2] *= 1e-6
        expected = replay_every_step(rows, rates, values)
        fast.replay_rows(*rows, np.zeros(50, np.int32), rates, len(rates), values)
        same = all((a == b).all() for a, b in zip(rows, expected, strict=True))
        assert same != ends


def test_replaying_in_pieces_gives_the_same_weights():
    rng = np.random.default_rng(2)
    rows, alphas = state(rng, 300, 10), rng.uniform(0, 1e-3, 500).astype(np.float32)
    last = rng.integers(0, 100, 300).astype(np.int32)
    for values in (RowSettings(), RowSettings(l2=1e-4)):
        once, pieces, steps = [x.copy() for x in rows], [x.copy() for x in rows], last.copy()
        fast.replay_rows(*once, last.copy(), alphas, 500, values)
        for to in (50, 101, 102, 350, 500):
            fast.replay_rows(*pieces, steps, alphas, to, values)
        np.testing.assert_array_equal(once[0], pieces[0])
        for a, b in zip(once[1:], pieces[1:], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-30)


@pytest.mark.thorough
def test_a_gap_of_a_hundred_thousand_steps():
    rng = np.random.default_rng(3)
    rows = state(rng, 2, 3)
    slow, alphas = wide(rows), np.full(100_000, 1e-4, np.float32)
    fast.replay_rows(*rows, np.zeros(2, np.int32), alphas, 100_000, RowSettings(l2=1e-3))
    ref.replay_rows(*slow, np.zeros(2, np.int32), alphas, 100_000, RowSettings(l2=1e-3))
    # Near zero the weights swing by about one learning rate; both must have arrived there.
    assert np.abs(rows[0]).max() < 2e-4 and np.abs(slow[0]).max() < 2e-4
