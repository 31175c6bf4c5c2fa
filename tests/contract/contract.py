"""What every front end of CowClip must do: tests that the front ends of Keras and PyTorch inherit.

A front end says how it trains in `Trained`; `Contract` asks each the same questions.
"""

from abc import ABC, abstractmethod

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from rows_one_by_one import RowsOneByOne

from cowclip_merlin import Hyperparameters, scale
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


class CaughtUp(Trained):
    """One whose front end hears of reads, and updates rows before.

    Attributes:
        READS: names of ways to read all rows of the first table.
        HISTORY: module whose `HISTORY` says after how many steps all rows are updated.
    """

    @abstractmethod
    def read(self, how, folder):
        """Rows of the first table, [N, d], by one of `READS`."""

    @abstractmethod
    def look_up(self, ids):
        """Rows of the first table."""

    @abstractmethod
    def write(self, rows):
        """Give the first table other rows."""

    @abstractmethod
    def behind(self):
        """Whether each row of the first table has missed steps, and how many there were."""

    @abstractmethod
    def change_optimizer(self, lr, **settings):
        """Train the same weights by another one, from now on."""

    @staticmethod
    @abstractmethod
    def of(values, **arguments):
        """Rate, dense rate, l2, clip and update of `CowClip.of`, by hyper-parameters."""


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
    checks whether gradients are finite; `ERROR`, by which error it says so.
    """

    CHECKED = UPDATES
    ERROR: type[Exception] = Exception  # in a graph, TensorFlow has one of its own around ours

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
            factors = expected.step(ids, values)
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
        """Nor the table before it."""
        good, bad = np.ones((2, 3), np.float32), np.array([[1.0, 1, 1], [1, np.nan, 1]], np.float32)
        for update in self.CHECKED:
            rng = np.random.default_rng(3)
            starts = [start_of(rng, 9, 3) for _ in range(2)]
            trained = make(starts, np.ones(2, np.float32), lr=1e-2, update=update)
            for batch in batches_of(rng, 5, rows=9, dim=3):
                trained.step([batch, batch], np.ones(2, np.float32))
            before = [trained.table(0).copy(), trained.table(1).copy(), trained.dense().copy()]
            with pytest.raises(self.ERROR, match=r"gradient of .*5.* is not finite"):
                trained.step([([2, 5], good), ([2, 5], bad)], np.ones(2, np.float32))
            after = trained.table(0), trained.table(1), trained.dense()
            for old, new in zip(before, after, strict=True):
                np.testing.assert_array_equal(new, old)


class ContractOfReads(Contract):
    """Also: nobody reads a row of a table that has missed a step. `make` returns a `CaughtUp`."""

    ERROR = InputError

    @pytest.fixture
    def trained(self, make):
        def run(update="exact", steps=30):
            rng = np.random.default_rng(4)
            start, dense = start_of(rng, 60, 3), np.ones(1, np.float32)
            made = make([start], dense, lr=1e-2, l2=1e-3, update=update)
            self.train(made, steps)
            return made

        return run

    def train(self, trained, steps):
        rng = np.random.default_rng(steps)
        for batch in batches_of(rng, steps, rows=60, dim=3, least=4, scales=(0.05,)):
            trained.step([batch], np.ones(1, np.float32))

    def assert_close(self, found, wanted, what=""):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7, err_msg=what)

    def test_every_read_is_of_rows_that_are_up_to_date(self, make, trained, tmp_path):
        wanted = trained("dense").table(0)
        for how in make.READS:
            one = trained()
            assert one.behind()[0].sum() > 10
            self.assert_close(one.read(how, tmp_path), wanted, how)

    def test_a_lookup_updates_its_rows_alone(self, trained):
        one = trained()
        behind = np.flatnonzero(one.behind()[0])
        one.look_up(behind[:2])
        np.testing.assert_array_equal(np.flatnonzero(one.behind()[0]), behind[2:])

    def test_what_a_user_writes_is_not_replayed(self, trained):
        one, dense = trained(), trained("dense")
        for each in (one, dense):
            each.write(np.full((60, 3), 0.25, np.float32))
            np.testing.assert_array_equal(each.table(0), 0.25)
            self.train(each, 5)
        self.assert_close(one.table(0), dense.table(0))

    def test_another_optimizer_takes_the_table(self, trained):
        wanted = trained("dense")
        wanted.change_optimizer(lr=1e-3, update="dense")
        self.train(wanted, 5)
        for update in ("exact", "dense"):
            one = trained()
            one.change_optimizer(lr=1e-3, update=update)
            self.train(one, 5)
            assert one.behind()[1] == (5 if update == "exact" else 0)
            self.assert_close(one.table(0), wanted.table(0))

    @pytest.mark.parametrize("steps", [5, 12])
    def test_a_long_training_updates_all_rows_now_and_then(self, make, trained, monkeypatch, steps):
        monkeypatch.setattr(f"{make.HISTORY}.HISTORY", 5)
        one = trained(steps=steps)
        assert one.behind()[1] == steps % 5
        self.assert_close(one.table(0), trained("dense", steps).table(0))

    def test_scaled_hyper_parameters(self, make):
        values = scale("criteo", to=8192)
        *numbers, clip, update = make.of(values, update="lazy")
        assert numbers == pytest.approx([values.embedding_lr, values.dense_lr, 8e-5])
        assert (clip, update) == ("cowclip", "lazy")
        assert make.of(Hyperparameters())[3:] == ("none", "exact")
        for name, value in (("adagrad", {"optimizer": "adagrad"}), ("micro", {"micro_batches": 2})):
            with pytest.raises(InputError, match=f"the optimizer for .* has no {name}"):
                make.of(Hyperparameters(**value))
        with pytest.raises(InputError, match="8192 is no Hyperparameters"):
            make.of(8192)

    def test_a_negative_rate_is_refused(self, make):
        with pytest.raises(InputError, match="embedding_lr is -1"):
            make([np.ones((3, 2), np.float32)], np.ones(1, np.float32), lr=-1.0)
