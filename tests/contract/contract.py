"""What every front end of CowClip must do: tests that the front ends of Keras and PyTorch inherit.

A front end says how it trains in `Trained`; `Contract` asks each the same questions.
"""

from abc import ABC, abstractmethod

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from rows_one_by_one import RowsOneByOne

from cowclip_merlin.errors import InputError

UPDATES = ("exact", "dense", "lazy")


class Trained(ABC):
    """Tables and a vector of dense weights, with the optimizer of one front end.

    Args:
        tables: initial weights of each table, [N, d].
        dense: initial dense weights, [k].
        lr: rate of the tables, a number or a function of the step's number from 0 on.
        settings: by their names in the front end for PyTorch, `update` among them.
    """

    as_torch = False
    """Whether Adam adds epsilon where PyTorch does."""

    @abstractmethod
    def __init__(self, tables, dense, *, lr, **settings): ...

    @abstractmethod
    def step(self, batches, dense):
        """One step: ids [n] and their gradients [n, d] of each table; gradient [k]."""

    @abstractmethod
    def table(self, i):
        """Weights of a table, as whoever reads it gets them."""

    @abstractmethod
    def dense(self):
        """Dense weights."""

    @abstractmethod
    def state(self):
        """All that a training needs to go on elsewhere: weights, moments, steps."""

    @abstractmethod
    def restore(self, state):
        """Go on from a state of another one."""


def batches_of(rng, steps, *, rows, dim, least=0, scales=(0, 1e-3, 0.05, 2.0)):
    """Skewed ids with duplicates, a third of the rows never; some gradients are zero."""
    for _ in range(steps):
        n = int(rng.integers(least, 13))
        ids = (rng.zipf(1.3, n) - 1) % max(1, rows - rows // 3)
        yield ids, rng.normal(0, rng.choice(scales), (n, dim)).astype(np.float32)


def start_of(rng, rows, dim):
    return rng.normal(0, 0.1, (rows, dim)).astype(np.float32)


def lacks_on_a_gpu(*, clip, update, r, l2, **_):
    """Whether CUDA's kernels refuse these: they do not clip absent rows."""
    return update != "lazy" and (clip == "column" or (clip == "cowclip" and 2 * l2 > r))


class Contract:
    """Inherit it as `class TestX(Contract)`, with a fixture `make` that returns a `Trained`.

    `lacks(**settings)` says whether the front end refuses these; `CHECKED`, of which updates it
    checks whether gradients are finite.
    """

    CHECKED = UPDATES

    def lacks(self, **settings):
        return False

    @hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(
        update=st.sampled_from(UPDATES),
        clip=st.sampled_from(["cowclip", "cowclip", "column", "none"]),
        rows=st.integers(1, 12),
        dim=st.integers(1, 9),
        r=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 10.0]),
        zeta=st.sampled_from([0.0, 1e-5, 1e-2]),
        bound=st.sampled_from([1e-4, 0.05]),
        l2=st.sampled_from([0.0, 1e-5, 1e-2, 0.4, 0.9]),
        betas=st.sampled_from([(0.9, 0.999), (0.7, 0.968), (0.0, 0.5), (0.99, 0.9999)]),
        epsilon=st.sampled_from([1e-7, 1e-8]),
        zero_rows=st.booleans(),
        missed=st.integers(1, 12),
        seed=st.integers(0, 2**32 - 1),
    )
    def test_steps_are_those_of_the_reference(
        self, make, update, clip, rows, dim, betas, zero_rows, missed, seed, **numbers
    ):
        """It is read after some steps only, so rows of exact updates miss these."""
        settings = {"update": update, "clip": clip, "betas": betas, **numbers}
        hypothesis.assume(not self.lacks(**settings))
        rng = np.random.default_rng(seed)
        start = start_of(rng, rows, dim)
        start[:: 2 if zero_rows else rows] *= 0
        trained = make([start], np.zeros(1, np.float32), lr=1e-2, **settings)
        expected = RowsOneByOne(start, lr=1e-2, as_torch=trained.as_torch, **settings)
        for _ in range(3):
            for ids, values in batches_of(rng, missed, rows=rows, dim=dim):
                trained.step([(ids, values)], np.ones(1, np.float32))
                expected.step(ids, values)
            found, largest = trained.table(0), np.abs(expected.w).max()
            assert np.abs(found - expected.w).max() <= 2e-5 * missed * max(1, largest)
            expected.w = found.astype(np.float64)  # rounding near m = 0 flips the sign of a step

    @pytest.mark.parametrize("update", UPDATES)
    def test_steps_follow_a_schedule_and_say_what_they_clipped(self, make, update):
        rng = np.random.default_rng(0)
        start = start_of(rng, 30, 5) / 10
        usual = {"l2": 1e-2, "r": 0.4, "zeta": 1e-5, "epsilon": 1e-7, "update": update}

        def rate(step):
            return 1e-2 * (1 - 0.9 * min(step, 80) / 80)

        trained = make([start], np.zeros(1, np.float32), lr=rate, **usual)
        expected = RowsOneByOne(start, lr=rate, as_torch=trained.as_torch, **usual)
        clipped = 0
        for ids, values in batches_of(rng, 100, rows=30, dim=5, least=1, scales=(0.05,)):
            trained.step([(ids, values)], np.ones(1, np.float32))
            factors = np.array(expected.step(ids, values))
            clipped += (factors < 1).sum()
            assert trained.clipped_share == pytest.approx((factors < 1).mean(), abs=1e-6)
            assert trained.mean_clip_factor == pytest.approx(factors.mean(), rel=1e-3)
        np.testing.assert_allclose(trained.table(0), expected.w, atol=1e-5)
        assert clipped > 50

    @pytest.mark.parametrize("update", UPDATES)
    def test_tables_of_dimension_1_get_l2_but_no_clip(self, make, update):
        rng = np.random.default_rng(1)
        usual = {"l2": 0.1, "r": 1.0, "zeta": 1e-5, "epsilon": 1e-7, "update": update}
        starts = start_of(rng, 8, 1), start_of(rng, 8, 2)
        trained = make(starts, np.zeros(1, np.float32), lr=1e-2, **usual)
        expected = [
            RowsOneByOne(start, lr=1e-2, as_torch=trained.as_torch, **usual) for start in starts
        ]
        for _ in range(30):
            pairs = [next(batches_of(rng, 1, rows=8, dim=d, scales=(0.01, 5.0))) for d in (1, 2)]
            trained.step(pairs, np.ones(1, np.float32))
            for each, pair in zip(expected, pairs):
                each.step(*pair)
        for i, each in enumerate(expected):
            np.testing.assert_allclose(trained.table(i), each.w, atol=5e-6)

    @pytest.mark.parametrize("update", UPDATES)
    def test_dense_weights_get_plain_adam(self, make, update):
        rng = np.random.default_rng(2)
        start = rng.normal(0, 1, 3).astype(np.float32)
        trained = make([start_of(rng, 4, 2)], start, lr=1e-2, l2=0.5, epsilon=1e-7, update=update)
        plain = {"lr": 1e-2, "l2": 0.0, "r": 0.0, "zeta": 0.0, "update": "dense", "clip": "none"}
        expected = RowsOneByOne(start[None], as_torch=trained.as_torch, **plain)
        for batch in batches_of(rng, 20, rows=4, dim=2):
            gradient = rng.normal(0, 50, 3).astype(np.float32)
            trained.step([batch], gradient)
            expected.step([0], gradient[None])
        np.testing.assert_allclose(trained.dense(), expected.w[0], atol=1e-6)

    @pytest.mark.parametrize("update", UPDATES)
    def test_a_training_goes_on_bit_for_bit(self, make, update):
        def new(seed):
            rng = np.random.default_rng(seed)
            return make([start_of(rng, 9, 3)], np.ones(2, np.float32), lr=1e-2, update=update)

        def train(trained, seed):
            rng = np.random.default_rng(seed)
            for batch in batches_of(rng, 20, rows=9, dim=3):
                trained.step([batch], rng.normal(0, 1, 2).astype(np.float32))

        one, other = new(0), new(1)
        train(one, 10)
        train(other, 11)
        other.restore(one.state())
        train(one, 12)
        train(other, 12)
        np.testing.assert_array_equal(one.table(0), other.table(0))
        np.testing.assert_array_equal(one.dense(), other.dense())

    REFUSED = (
        ({"update": "all"}, "unknown update 'all'"),
        ({"clip": "cowclop"}, "unknown clip 'cowclop'"),
        ({"l2": -1.0}, "l2 is -1"),
        ({"r": -1.0}, "r is -1"),
        ({"zeta": float("nan")}, "zeta is nan"),
    )

    @pytest.mark.parametrize(("settings", "words"), REFUSED)
    def test_wrong_settings_are_refused(self, make, settings, words):
        with pytest.raises(InputError, match=words):
            make([np.ones((3, 2), np.float32)], np.ones(1, np.float32), lr=1e-2, **settings)

    def test_a_gradient_that_is_not_finite_changes_nothing(self, make):
        values = np.array([[1.0, 1, 1], [1, np.nan, 1]], np.float32)
        for update in self.CHECKED:
            rng = np.random.default_rng(3)
            trained = make([start_of(rng, 9, 3)], np.ones(2, np.float32), lr=1e-2, update=update)
            for batch in batches_of(rng, 5, rows=9, dim=3):
                trained.step([batch], np.ones(2, np.float32))
            table, dense = trained.table(0).copy(), trained.dense().copy()
            # In a graph, TensorFlow has an error of its own around ours.
            with pytest.raises(Exception, match=r"gradient of .*5.* is not finite"):
                trained.step([([2, 5], values)], np.ones(2, np.float32))
            np.testing.assert_array_equal(trained.table(0), table)
            np.testing.assert_array_equal(trained.dense(), dense)
