"""The steps of `cowclip_merlin.keras3.CowClip` are those of Keras's Adam, and of the reference."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.system, pytest.mark.quick]


@pytest.mark.parametrize("l2", [1e-3, 0.0])
@pytest.mark.parametrize("update", ["exact", "dense"])
def test_without_a_clip_weights_are_those_of_adam(
    keras, cowclip, model_of, batches, train, update, l2
):
    """Also with rates that a schedule changes, over steps that most rows miss."""
    falling = keras.optimizers.schedules.CosineDecay(1e-2, 500)
    ours = model_of(cowclip(falling, l2=l2, clip="none", update=update))
    # A penalty makes its gradient dense: of a sparse one, Keras's Adam squares each entry, and sums
    # those of equal ids then.
    penalty = l2 or 1e-30
    theirs = model_of(keras.optimizers.Adam(falling), kind=keras.layers.Embedding, l2=penalty)
    for model in (ours, theirs):
        train(model, batches(500))
    for mine, other in zip(ours.get_weights(), theirs.get_weights()):
        np.testing.assert_allclose(mine, other, rtol=2e-5, atol=2e-5)
    for mine, other in zip(ours.optimizer.variables, theirs.optimizer.variables):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-3, atol=1e-7)


def reference_step(w, m, v, gradient, count, t, rate, how):
    """A loop over rows: L2, clip, Adam; all arrays are float64 [rows, d] and change in place."""
    for i in range(len(w)):
        if how["update"] == "lazy" and not count[i]:
            continue
        g = gradient[i] + 2 * how["l2"] * w[i]
        norm, limit = np.linalg.norm(g), math.inf
        if w.shape[1] == 1:  # first-order weights are not clipped
            limit = math.inf
        elif how["clip"] == "cowclip":
            least = math.sqrt(w.shape[1]) * how["zeta"]
            limit = max(count[i], 1) * max(how["r"] * np.linalg.norm(w[i]), least)
        elif how["clip"] == "column":
            limit = how["bound"]
        g = g * min(1, limit / norm) if norm else g
        m[i] += 0.1 * (g - m[i])
        v[i] += 0.001 * (g * g - v[i])
        alpha = rate * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        w[i] -= alpha * m[i] / (np.sqrt(v[i]) + 1e-7)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    how=st.fixed_dictionaries(
        {
            "update": st.sampled_from(["exact", "dense", "lazy"]),
            "clip": st.sampled_from(["cowclip", "column", "none"]),
            "l2": st.sampled_from([0.0, 1e-3, 0.3]),
            "r": st.sampled_from([0.0, 0.3, 1.0]),
            "zeta": st.sampled_from([0.0, 1e-3]),
            "bound": st.sampled_from([1e-3, 0.05]),
        }
    ),
    shape=st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(1, 6)),
    seed=st.integers(0, 99),
)
def test_steps_are_those_of_the_reference(keras, tf, cowclip, model_of, batches, how, shape, seed):
    rows, dim, fields, size = shape
    rates = [1e-2, 3e-3]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([6], rates)
    model = model_of(cowclip(schedule, **how), rows=rows, dim=dim, fields=fields)
    w = model.get_weights()[0].astype(float)
    m, v = np.zeros_like(w), np.zeros_like(w)
    every_id, every_label = batches(12, size=size, seed=seed, rows=rows, fields=fields)
    for t in range(1, 13):
        ids, labels = (x[(t - 1) * size : t * size] for x in (every_id, every_label))
        with tf.GradientTape() as tape:
            loss = 100 * model.compute_loss(y=labels, y_pred=model(ids, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        assert len(gradients[0].indices) == ids.size  # an entry for each occurrence
        gradient = tf.convert_to_tensor(gradients[0]).numpy().astype(float)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        count = np.bincount(ids.ravel(), minlength=rows)
        reference_step(w, m, v, gradient, count, t, rates[t > 7], how)
        if t % 4 == 0:
            np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-3, atol=2e-5)
    assert 0 <= model.optimizer.clipped_share <= 1 and model.optimizer.mean_clip_factor <= 1
    if how["clip"] == "none":
        assert model.optimizer.clipped_share == 0


def clipped_counts(optimizer):
    """The counts of a first step with l2=0, r=0 and zeta=1, if all rows were clipped."""
    return np.linalg.norm(optimizer.variables[2].numpy(), axis=1) / 0.1 / math.sqrt(3)


@pytest.mark.parametrize("kind", ["ours", "keras"])
@pytest.mark.parametrize("as_function", [True, False])
@pytest.mark.parametrize("rows", [6, 60])
def test_counts_are_of_all_lookups(keras, tf, cowclip, kind, as_function, rows):
    """Also of a table that is looked up twice."""
    from cowclip_merlin.keras3 import Embedding

    layer = (Embedding if kind == "ours" else keras.layers.Embedding)(rows, 3)
    layer.build()
    update = "exact" if kind == "ours" else "dense"
    optimizer = cowclip(1e-2, l2=0.0, zeta=1.0, r=0.0, update=update)

    def step():
        with tf.GradientTape() as tape:
            loss = 1e3 * tf.reduce_sum(layer(tf.constant([[3, 3, 5]])))
            loss += 1e3 * tf.reduce_sum(layer(tf.constant([3, 2], tf.int64)))
        optimizer.apply_gradients(zip(tape.gradient(loss, layer.variables), layer.variables))

    (tf.function(step) if as_function else step)()
    counts = clipped_counts(optimizer)
    assert counts[[2, 3, 5]].tolist() == pytest.approx([1, 3, 1], rel=1e-5)
    assert counts.sum() < 5.001 and optimizer.clipped_share == 1


def test_a_small_rate_of_a_schedule_is_that_of_its_step(keras, cowclip, model_of, batches, train):
    """Tables by one schedule, the other weights by another one."""
    piecewise = keras.optimizers.schedules.PiecewiseConstantDecay
    tables, dense = piecewise([2], [0.0, 1e-2]), piecewise([2], [1e-2, 0.0])
    model = model_of(cowclip(tables, dense_lr=dense, update="lazy"))
    seen = [model.get_weights()]
    for seed in range(6):
        train(model, batches(1, seed=seed))
        seen.append(model.get_weights())
    moved = [[bool((a != b).any()) for a, b in zip(*pair)] for pair in pairwise(seen)]
    assert moved == [[False, True, True]] * 3 + [[True, False, False]] * 3
