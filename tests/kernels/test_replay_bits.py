"""Replayed rows have the bits of the same steps of the numba kernels, made one at a time."""

import numpy as np
import pytest

from cowclip_merlin import kernels
from cowclip_merlin.choices import ClipSettings
from cowclip_merlin.kernels import RowSettings

numba = kernels.load("numba")
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
        [numba.step_rows(*rows, every, nothing, starts, alpha, settings) for alpha in alphas]
    )


@pytest.mark.parametrize("d", [1, 3, 11, 64])
@pytest.mark.parametrize("clip", ["none", "cowclip", "column"])
def test_a_replay_has_the_bits_of_its_steps(d, clip):
    rows = rows_of_any_kind(d)
    middle = float(np.median(2 * L2 * np.linalg.norm(rows[0][20:], axis=1)))
    thresholds = ClipSettings(r=1e-6, zeta=middle / d**0.5, bound=middle)
    settings = RowSettings(l2=L2, clip=clip, clip_settings=thresholds)
    alphas = np.random.default_rng(0).uniform(0, 1e-3, 31).astype(np.float32)
    expected = [x.copy() for x in rows]
    factors = steps_of_absent_rows(expected, alphas, settings)
    numba.replay_rows(*rows, np.zeros(ROWS, np.int32), alphas, len(alphas), settings)
    for a, b in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    clipped = (factors < 1).mean()
    assert clipped == 0 if clip == "none" else 0.1 < clipped < 0.9
