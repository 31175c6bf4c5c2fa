"""Hidden layers with batch normalization, other activations and dropout, against NumPy."""

import math

import numpy as np
import pytest

from cowclip_merlin.models import MODELS, logits
from cowclip_merlin.models.hidden.layers import CountedDropout, Dice, HiddenLayer

SMALL = {"embedding_dim": 4, "mlp": (6, 5), "seed": 3}


def gelu(x):
    return x * np.vectorize(lambda t: (1 + math.erf(t / math.sqrt(2))) / 2)(x)


def normalized(x, mean, variance, epsilon):
    return (x - mean) / np.sqrt(variance + epsilon)


def dice(s, a, mean, variance):
    p = 1 / (1 + np.exp(-normalized(s, mean, variance, 1e-8)))
    return p * s + (1 - p) * a * s


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=[64, 7]).astype(np.float32)


@pytest.mark.parametrize("activation", ["relu", "gelu", "dice"])
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_numbers(tf, x, activation, batch_norm, training):
    layer = HiddenLayer(5, activation=activation, dropout=0.0, batch_norm=batch_norm, seed=1)
    layer(x, training=True)  # so that moving statistics are no longer those of the start
    norms = [each for each in layer.others if isinstance(each, tf.keras.layers.BatchNormalization)]
    z = x.astype(np.float64) @ layer.dense.kernel.numpy() + layer.dense.bias.numpy()
    if batch_norm:
        (norm,) = norms
        moving = norm.moving_mean.numpy(), norm.moving_variance.numpy()
        z = normalized(z, *((z.mean(0), z.var(0)) if training else moving), 1e-3)
    if activation == "dice":
        made = next(each for each in layer.others if isinstance(each, Dice))
        made.a.assign(np.linspace(-1, 1, 5))
        moving = made.norm.moving_mean.numpy(), made.norm.moving_variance.numpy()
        z = dice(z, made.a.numpy(), *((z.mean(0), z.var(0)) if training else moving))
    else:
        z = {"relu": lambda s: np.maximum(s, 0), "gelu": gelu}[activation](z)
    np.testing.assert_allclose(layer(x, training=training), z, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("activation", ["relu", "dice"])
def test_a_batch_without_rows_keeps_the_moving_statistics(tf, x, activation):
    """A worker may have no row of a small batch."""
    layer = HiddenLayer(5, activation=activation, dropout=0.5, batch_norm=True, seed=1)
    layer(x, training=True)
    before = [v.numpy() for v in layer.variables if "moving_" in v.name]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(x[:0], training=True))
    gradients = tape.gradient(total, layer.trainable_variables)
    after = [v.numpy() for v in layer.variables if "moving_" in v.name]
    np.testing.assert_array_equal(np.stack(after), np.stack(before))
    assert len(before) == (4 if activation == "dice" else 2)
    assert all(not np.any(g) for g in gradients)  # NaN counts as any


def test_dropout_keeps_the_mean_and_counts_its_steps(tf):
    layer, ones = CountedDropout(0.25, seed=5), tf.ones([400, 50])
    first, second = (layer(ones, training=True).numpy() for _ in range(2))
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert first.mean() == pytest.approx(1, abs=0.02)  # 5 standard errors
    assert (first != second).mean() == pytest.approx(2 * 0.25 * 0.75, abs=0.02)
    np.testing.assert_array_equal(layer(ones), ones)
    assert layer.steps.numpy() == 2
    layer.steps.assign(1)
    np.testing.assert_array_equal(layer(ones, training=True), second)
    other = CountedDropout(0.25, seed=6)
    assert (other(ones, training=True).numpy() != first).any()


def test_several_workers_drop_different_outputs(tf, monkeypatch):
    from cowclip_merlin import workers

    found = []
    for rank in range(2):
        group = workers.Workers(rank, ("a:1", "b:1"))
        monkeypatch.setattr(workers, "current", lambda group=group: group)
        found.append(CountedDropout(0.5, seed=5)(tf.ones([40, 9]), training=True).numpy())
    assert (found[0] != found[1]).any()


def test_half_precision(tf, schema, batch):
    from cowclip_merlin.models.hidden.layers import computing_in

    exact = MODELS["deepfm"](schema, init_std=0.5, **SMALL, activation="gelu", batch_norm=True)
    with computing_in("bfloat16"):
        half = MODELS["deepfm"](schema, init_std=0.5, **SMALL, activation="gelu", batch_norm=True)
    z = logits(half, batch, training=True)
    assert z.dtype == tf.float32
    np.testing.assert_allclose(z, logits(exact, batch, training=True), atol=0.1)


def test_plain_layers_are_those_of_before(schema):
    kinds = [type(each) for each in MODELS["dcn"](schema, **SMALL).blocks[0].hidden]
    assert HiddenLayer not in kinds
