"""AdamW and Lion for the dense weights make the steps of Keras's own."""

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.contrib.decoupled import AdamW, Lion, dense_optimizer
from cowclip_merlin.errors import InputError


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
        ("AdamW", {}),
        ("Adam", {"learning_rate": 0.02, "weight_decay": 0.1}),
        ("Lion", {"learning_rate": 0.003, "beta_1": 0.7, "beta_2": 0.9, "weight_decay": 0.2}),
        ("Lion", {}),
    ],
)
@pytest.mark.parametrize("form", ["object", "serialized"])
def test_its_steps_are_those_of_keras(tf, numbers, name, config, form):
    start, gradients = numbers
    new = getattr(tf.keras.optimizers, name)(**config, jit_compile=False)
    given = {"class_name": name, "config": new.get_config()} if form == "serialized" else new
    ours = dense_optimizer(given)
    assert type(ours) is (Lion if name == "Lion" else AdamW)
    found, wanted = (steps(tf, each, gradients, start) for each in (ours, new))
    for one, other in zip(found, wanted):
        for x, y in zip(one, other):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_a_schedule_moves_the_rate_and_the_decay(tf, numbers):
    start, gradients = numbers
    rate = tf.keras.optimizers.schedules.PolynomialDecay(0.1, 10)
    for name in ("AdamW", "Lion"):
        new = getattr(tf.keras.optimizers, name)(rate, weight_decay=0.5, jit_compile=False)
        found, wanted = (steps(tf, each, gradients, start) for each in (dense_optimizer(new), new))
        for x, y in zip(found[-1], wanted[-1]):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("kind", [AdamW, Lion])
def test_a_saved_form_keeps_every_argument(tf, kind):
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


def test_what_would_be_ignored_is_refused(tf):
    optimizers = tf.keras.optimizers
    excluding = optimizers.AdamW()
    excluding.exclude_from_weight_decay(var_names=["bias"])
    for given, words in [
        (optimizers.AdamW(clipnorm=1.0), "AdamW with clipnorm is not supported"),
        (optimizers.Lion(use_ema=True), "Lion with use_ema is not supported"),
        (excluding, "exclude_from_weight_decay is not supported"),
    ]:
        with pytest.raises(InputError, match=words):
            cc.CowClip("adam", given)
    with pytest.raises(InputError, match="weight_decay is -1; it must be at least 0"):
        AdamW(weight_decay=-1)
    with pytest.raises(InputError, match="beta_1 is 0; it must be above 0"):
        Lion(beta_1=0)
