"""`update="exact"`: the numbers of "dense" at the cost of the rows in the batch."""

import numpy as np
import pytest
from two_tables import TwoTables, batches

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:update=.exact.:UserWarning")


def trained(tf, backend="auto", **settings):
    """Weights of two tables after steps with skewed ids."""
    model = TwoTables(tf, backend, **settings).train(batches((12,) * 100))
    model.opt.flush()
    return model.state[:2]


def worst(a, b):
    """Largest difference relative to the largest weight, over all tables."""
    return max(np.abs(x - y).max() / np.abs(x).max() for x, y in zip(a, b, strict=True))


@pytest.mark.one_case
@pytest.mark.parametrize(("update", "backend"), [("exact", "tensorflow"), ("dense", "numba")])
def test_micro_batches(tf, update, backend):
    """`kernels.reference` has the mathematics; here every engine makes the same steps."""
    numbers = {"micro_batches": 4, "r": 0.1}
    expected = trained(tf, **numbers)
    assert worst(expected, trained(tf, backend, update=update, **numbers)) <= 2e-6
    assert worst(expected, trained(tf, r=0.1)) > 1e-3


def test_micro_batches_need_row_updates():
    for update in ("dense", "lazy"):
        with pytest.raises(InputError, match=r"micro_batches is 4, .*exact.*numba"):
            cc.CowClip(update=update, backend="tensorflow", micro_batches=4)
    lazy = cc.CowClip(update="lazy", backend="tensorflow")
    with (
        pytest.raises(InputError, match="micro_batches is 4, "),
        lazy.tracing_with(l2=0.0, micro_batches=4),
    ):
        pass


def test_a_rate_that_is_set_from_outside(tf):
    ends = []
    for update, backend in (("dense", "tensorflow"), ("exact", "auto")):
        model = TwoTables(tf, backend, update=update).train(batches((12,) * 20))
        model.opt.embedding_optimizer.learning_rate = 1e-4
        model.train(batches((12,) * 20, seed=2)).opt.flush()
        ends.append(model.state[:2])
    assert worst(*ends) <= 2e-6


def test_before_a_flush_absent_rows_are_as_they_were(tf):
    model = TwoTables(tf, "auto")
    start = model.table.numpy()
    model.train([(np.array([1, 2]), np.ones((2, 10), "f"))] * 5)
    np.testing.assert_array_equal(model.table.numpy()[3:], start[3:])
    model.opt.catch_up(model.table, [[7], [9]])
    caught = model.table.numpy()
    assert (caught[[7, 9]] != start[[7, 9]]).all() and (caught[8] == start[8]).all()
    model.opt.flush()
    assert (model.table.numpy()[8] != start[8]).all()
    np.testing.assert_array_equal(model.table.numpy()[[7, 9]], caught[[7, 9]])


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
        TwoTables(tf, "auto").train(batches((3,) * 3))
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
