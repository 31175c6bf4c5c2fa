"""`update="exact"`: the numbers of "dense" at the cost of the rows in the batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError

ROWS, DIM, BATCH = 400, 10, 48
pytestmark = pytest.mark.filterwarnings("ignore:update=.exact.:UserWarning")


class TwoTables:
    """Two tables with the same ids, a kernel, and a step in graph mode."""

    def __init__(self, tf, rate=1e-3, adam=None, **arguments):
        rng = np.random.default_rng(7)
        self.table = tf.Variable(rng.normal(0, 1e-2, (ROWS, DIM)).astype("f"), name="embeddings")
        self.wide = tf.Variable(np.zeros((ROWS, 1), "f"), name="wide_embeddings")
        kernel = tf.Variable([1.0])
        adam = tf.keras.optimizers.legacy.Adam(rate, **(adam or {}))
        self.optimizer = cc.CowClip(adam, **({"l2": 1e-3} | arguments))

        @tf.function(
            input_signature=[
                tf.TensorSpec([None], tf.int32),
                tf.TensorSpec([None, DIM], tf.float32),
            ]
        )
        def step(ids, g):
            self.optimizer.apply_gradients(
                [
                    (tf.IndexedSlices(g, ids, tf.constant([ROWS, DIM])), self.table),
                    (tf.IndexedSlices(g[:, :1], ids, tf.constant([ROWS, 1])), self.wide),
                    (tf.reduce_sum(g)[tf.newaxis], kernel),
                ]
            )

        self.step = step

    def train(self, steps, seed, scale=0.05):
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            ids = np.minimum(rng.pareto(0.4, BATCH), ROWS - 1).astype(np.int32)
            self.step(ids, rng.normal(0, scale, (BATCH, DIM)).astype("f"))
        self.optimizer.flush()
        return self.table.numpy(), self.wide.numpy()


def worst(a, b):
    """Largest difference relative to the largest weight, over all tables."""
    return max(np.abs(x - y).max() / np.abs(x).max() for x, y in zip(a, b, strict=True))


@pytest.mark.thorough
def test_a_thousand_steps(tf, kernels):
    dense = TwoTables(tf, update="dense")
    expected = dense.train(1000, 0)
    exact = TwoTables(tf, update="exact")
    assert exact.optimizer.backend == kernels
    assert worst(expected, exact.train(1000, 0)) <= 1e-6
    assert 0 < dense.optimizer.clipped_share.numpy() == exact.optimizer.clipped_share.numpy()


CUTS_L2 = {
    "column": {"clip": "column", "bound": 2e-5},
    "cowclip": {"r": 1e-3, "zeta": 0.0},
}
"""Settings under which L2 alone, up to 1e-4 here, is clipped."""


@pytest.mark.one_case
@pytest.mark.parametrize("clip", CUTS_L2)
@pytest.mark.parametrize(
    ("update", "backend"), [("exact", "auto"), ("exact", "tensorflow"), ("dense", "numba")]
)
def test_absent_rows_are_clipped(tf, clip, update, backend):
    expected = TwoTables(tf, update="dense", **CUTS_L2[clip]).train(300, 6)
    other = TwoTables(tf, update=update, backend=backend, **CUTS_L2[clip])
    assert worst(expected, other.train(300, 6)) <= 2e-6
    unclipped = TwoTables(tf, update="exact", clip="none").train(300, 6)
    assert worst(expected, unclipped) > 1e-3


@pytest.mark.one_case
@pytest.mark.parametrize(("update", "backend"), [("exact", "tensorflow"), ("dense", "numba")])
def test_micro_batches(tf, update, backend):
    """`kernels.reference` has the mathematics; here every engine makes the same steps."""
    numbers = {"micro_batches": 4, "clip": "cowclip", "r": 0.1, "l2": 1e-2}
    expected = TwoTables(tf, update="exact", **numbers).train(100, 5)
    other = TwoTables(tf, update=update, backend=backend, **numbers)
    assert worst(expected, other.train(100, 5)) <= 2e-6
    numbers["micro_batches"] = 1
    assert worst(expected, TwoTables(tf, update="exact", **numbers).train(100, 5)) > 1e-3


def test_micro_batches_need_row_updates(tf):
    for update in ("dense", "lazy"):
        with pytest.raises(InputError, match=r"micro_batches is 4, .*exact.*numba"):
            TwoTables(tf, update=update, backend="tensorflow", micro_batches=4)
    lazy = cc.CowClip(update="lazy", backend="tensorflow")
    with (
        pytest.raises(InputError, match="micro_batches is 4, "),
        lazy.tracing_with(l2=0.0, micro_batches=4),
    ):
        pass
    with pytest.raises(InputError, match="micro_batches is 0; "):
        TwoTables(tf, micro_batches=0)


def test_lazy_is_another_algorithm(tf):
    assert worst(TwoTables(tf).train(100, 4), TwoTables(tf, update="lazy").train(100, 4)) > 1e-2


@settings(max_examples=5)
@given(
    rates=st.lists(st.floats(1e-5, 1e-2), min_size=3, max_size=3),
    ends=st.lists(st.integers(1, 60), min_size=2, max_size=2, unique=True),
    l2=st.sampled_from([0.0, 1e-5, 1e-2]),
    clip=st.sampled_from(["cowclip", "none"]),
    seed=st.integers(0, 1000),
)
def test_any_schedule(tf, rates, ends, l2, clip, seed):
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay(sorted(ends), rates)
    arguments = {"rate": schedule, "l2": l2, "clip": clip}
    expected = TwoTables(tf, update="dense", **arguments).train(70, seed)
    assert worst(expected, TwoTables(tf, update="exact", **arguments).train(70, seed)) <= 2e-6


@settings(max_examples=4)
@given(beta_1=st.floats(0, 0.95), beta_2=st.floats(0.1, 0.9999), seed=st.integers(0, 1000))
def test_random_betas(tf, beta_1, beta_2, seed):
    given = {"adam": {"beta_1": min(beta_1, beta_2**0.5), "beta_2": beta_2}, "l2": 1e-5}
    expected = TwoTables(tf, update="dense", **given).train(60, seed)
    assert worst(expected, TwoTables(tf, update="exact", **given).train(60, seed)) <= 2e-6


def test_a_rate_that_is_set_from_outside(tf):
    pair = [TwoTables(tf, update=u) for u in ("dense", "exact")]
    for trainee in pair:
        trainee.train(20, 1)
        trainee.optimizer.embedding_optimizer.learning_rate = 1e-4
        trainee.train(20, 2)
    assert worst(*[(t.table.numpy(), t.wide.numpy()) for t in pair]) <= 1e-6


def test_before_a_flush_absent_rows_are_as_they_were(tf):
    trainee = TwoTables(tf, update="exact")
    start = trainee.table.numpy()
    for _ in range(5):
        trainee.step(np.array([1, 2], np.int32), np.ones((2, DIM), "f"))
    stale = trainee.table.numpy()
    np.testing.assert_array_equal(stale[3:], start[3:])
    trainee.optimizer.catch_up(trainee.table, [[7], [9]])
    caught = trainee.table.numpy()
    assert (caught[[7, 9]] != start[[7, 9]]).all() and (caught[8] == start[8]).all()
    trainee.optimizer.flush()
    assert (trainee.table.numpy()[8] != start[8]).all()
    np.testing.assert_array_equal(trainee.table.numpy()[[7, 9]], caught[[7, 9]])


@pytest.mark.parametrize("scaled", [False, True])
def test_a_plain_model_is_refused_before_it_moves(tf, scaled):
    model = tf.keras.Sequential([tf.keras.layers.Embedding(9, 2), tf.keras.layers.Dense(1)])
    optimizer = cc.CowClip(update="exact")
    if scaled:
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
    model.compile(optimizer, "mse")
    model(np.array([[1]]))
    before = model.get_weights()
    with pytest.raises(
        InputError, match=r"nothing brings rows of '.*embeddings:0' up to date .*la"
    ):
        model.fit(np.array([[1], [2], [1]]), np.ones((3, 1)), batch_size=1, verbose=0)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_the_backend_is_logged_once(tf, caplog, kernels):
    with caplog.at_level("INFO", logger="cowclip_merlin"):
        TwoTables(tf, update="exact").train(3, 0)
    assert [r.message for r in caplog.records] == [f"update exact, backend {kernels}"]


def test_weights_of_the_optimizer_are_those_of_dense(tf):
    """Its lists of weights do not hold what rows owe, so there they owe nothing."""
    ends = []
    for update in ("dense", "exact"):
        table = tf.Variable(tf.ones([4, 2]), name="embeddings")
        optimizer = cc.CowClip(update=update, l2=1e-2)
        for row in (0, 1, 2, 1):
            optimizer.catch_up(table, tf.constant([row]))
            g = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([row]), tf.constant([4, 2]))
            optimizer.apply_gradients([(g, table)])
        weights = optimizer.get_weights()
        optimizer.set_weights(weights)
        ends.append([table.numpy(), *weights])
    for dense, exact in zip(*ends, strict=True):
        np.testing.assert_allclose(exact, dense, rtol=1e-6)
