"""The steps of `cowclip_merlin.keras3.CowClip` are those of Keras's Adam; counts and rates."""

import math
from itertools import pairwise

import numpy as np
import pytest

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
