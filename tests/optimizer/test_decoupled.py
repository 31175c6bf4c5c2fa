"""AdamW and Lion for the dense weights make the steps of Keras's own."""

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin import compat

PolynomialDecay = compat.tensorflow().keras.optimizers.schedules.PolynomialDecay


def dense_optimizer(given):
    """What CowClip makes of an optimizer, its name or its saved form."""
    return cc.CowClip("adam", given).dense_optimizer


def steps(tf, optimizer, gradients, start):
    """The weights after each step."""
    weights, seen = [tf.Variable(x) for x in start], []
    for each in gradients:
        optimizer.apply_gradients([(tf.constant(g), w) for g, w in zip(each, weights)])
        seen.append([w.numpy() for w in weights])
    return seen


@pytest.fixture
def numbers():
    rng = np.random.default_rng(3)
    shapes = [(4, 3), (5,)]
    start = [rng.normal(size=s).astype("float32") for s in shapes]
    return start, [[rng.normal(size=s).astype("float32") for s in shapes] for _ in range(20)]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("AdamW", {"learning_rate": 0.01, "weight_decay": 0.3, "beta_1": 0.8, "epsilon": 1e-4}),
        ("AdamW", {"learning_rate": PolynomialDecay(0.1, 10), "weight_decay": 0.5}),
        ("AdamW", {}),
        ("Adam", {"learning_rate": 0.02, "weight_decay": 0.1}),
        ("Lion", {"learning_rate": 0.003, "beta_1": 0.7, "beta_2": 0.9, "weight_decay": 0.2}),
        ("Lion", {"learning_rate": PolynomialDecay(0.1, 10), "weight_decay": 0.5}),
        ("Lion", {}),
    ],
)
@pytest.mark.parametrize("form", ["object", "serialized"])
def test_its_steps_are_those_of_keras(tf, numbers, name, config, form):
    start, gradients = numbers
    new = getattr(tf.keras.optimizers, name)(**config, jit_compile=False)
    given = {"class_name": name, "config": new.get_config()} if form == "serialized" else new
    ours = dense_optimizer(given)
    assert type(ours).__name__ == ("Lion" if name == "Lion" else "AdamW")
    found, wanted = (steps(tf, each, gradients, start) for each in (ours, new))
    for one, other in zip(found, wanted):
        for x, y in zip(one, other):
            np.testing.assert_allclose(x, y, rtol=1e-4 if config else 1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "lion"])
@pytest.mark.parametrize("update", ["dense", "exact"])
def test_cowclip_trains_with_it_and_saves_it(tf, name, update):
    """Only the dense weights follow it; the table and its rows have Adam."""
    optimizer = cc.CowClip("adam", name, l2=0.0, update=update, embeddings=["table"])
    table, dense = tf.Variable(tf.ones([5, 2]), name="table"), tf.Variable(tf.ones([3]))
    slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 3]), tf.constant([5, 2]))
    optimizer.apply_gradients([(slices, table), (tf.constant([1.0, -1.0, 0.0]), dense)])
    decay = {"adamw": 1e-3 * 0.004, "lion": 0.0}[name]
    step = {"adamw": 1e-3, "lion": 1e-4}[name]
    wanted = np.float32(1 - decay) - step * np.array([1, -1, 0])
    np.testing.assert_allclose(dense.numpy(), wanted, rtol=1e-6)
    assert (table.numpy()[[0, 2, 4]] == 1).all() and (table.numpy()[[1, 3]] < 1).all()
    again = cc.CowClip.from_config(optimizer.get_config())
    assert type(again.dense_optimizer) is type(optimizer.dense_optimizer)
    assert again.get_config() == optimizer.get_config()


def test_a_legacy_optimizer_of_this_name_is_kept(tf):
    """As that of TensorFlow Addons, whose settings would be lost."""
    own = type("Lion", (tf.keras.optimizers.legacy.SGD,), {})(0.5)
    assert cc.CowClip("adam", own).dense_optimizer is own


@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_a_saved_form_keeps_every_argument(tf, name):
    kind = type(dense_optimizer(name))
    given = kind(0.25, weight_decay=0.5, beta_1=0.75, beta_2=0.625, decay=0.125)
    again = dense_optimizer(tf.keras.optimizers.serialize(given))
    assert again.get_config() == given.get_config() and again.get_config()["decay"] == 0.125


@pytest.mark.parametrize("name", ["AdamW", "Lion"])
def test_a_sparse_gradient_counts_as_a_dense_one(tf, name):
    start = np.ones((4, 2), "float32")
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 3, 1]), tf.constant([4, 2]))
    one, other = tf.Variable(start), tf.Variable(start)
    ours = [dense_optimizer(getattr(tf.keras.optimizers, name)()) for _ in range(2)]
    ours[0].apply_gradients([(slices, one)])
    ours[1].apply_gradients([(tf.convert_to_tensor(slices), other)])
    np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-6)


def test_lion_needs_momentum():
    with pytest.raises(cc.InputError, match="beta_1 is 0; it must be above 0"):
        type(dense_optimizer("lion"))(beta_1=0)
