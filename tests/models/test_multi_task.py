"""Models with several targets: ESMM's product, losses, and what is refused."""

import numpy as np
import pytest
from by_hand import SMALL, for_task
from hypothesis import given, settings
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.models import Columns
from cowclip_merlin.models.multi_task import losses_of, of_both
from cowclip_merlin.targets import Target


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(-30, 30), st.floats(-30, 30)), min_size=1, max_size=5))
def test_esmm_multiplies_probabilities(pairs):
    z = np.array(pairs)
    p = 1 / (1 + np.exp(-z))
    found = of_both(z).numpy()
    np.testing.assert_array_equal(found[:, 0], z[:, 0])
    np.testing.assert_allclose(1 / (1 + np.exp(-found[:, 1])), p[:, 0] * p[:, 1], rtol=1e-9)


def test_esmm_has_gradients_where_probabilities_saturate(tf):
    z = tf.Variable([[200.0, -300.0], [-300.0, 200.0], [400.0, 400.0], [0.0, 0.0]])
    with tf.GradientTape() as tape:
        both = of_both(z)
        second = both[:, 1]
    gradient = tape.gradient(second, z).numpy()
    assert np.isfinite(both.numpy()).all() and np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient[:2], [[0, 1], [1, 0]], atol=1e-6)


LABELS = st.sampled_from([0.0, 1.0, float("nan")])
NUMBER = st.sampled_from([float("nan"), -3.5, 0.0, 1e3])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(LABELS, NUMBER, LABELS, *[st.floats(-20, 20)] * 3), min_size=1, max_size=6)
)
def test_losses_of_labels_by_hand(tf, rows):
    """Each label adds its loss; a missing one adds 0, also to the gradient."""
    table = np.array(rows)
    labels, z = table[:, :3], tf.Variable(table[:, 3:])
    with tf.GradientTape() as tape:
        found = losses_of([Target("a"), Target("t", True), Target("b")], {})(tf.constant(labels), z)
    losses, gradient = np.zeros(len(rows)), np.zeros((len(rows), 3))
    for i, row in enumerate(rows):
        for j, (y, x) in enumerate(zip(row[:3], row[3:])):
            if y == y and j == 1:
                losses[i], gradient[i, j] = losses[i] + (x - y) ** 2, 2 * (x - y)
            elif y == y:
                p = 1 / (1 + np.exp(-x))
                losses[i] += -np.log(p if y else 1 - p)
                gradient[i, j] = p - y
    np.testing.assert_allclose(found, losses, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(tape.gradient(found, z), gradient, rtol=1e-6, atol=1e-12)


def test_clips_leave_the_linear_part_of_each_target_out(schema):
    model, optimizer = (
        cc.models.deepfm(for_task(schema, "mmoe"), multi_task="mmoe", **SMALL),
        cc.CowClip(),
    )
    cc.models.attach(model, optimizer)
    tables = [v for v in model.trainable_variables if "embeddings" in v.name]
    assert [optimizer.tables.skips(table) for table in tables] == [False, True, True, True]


def test_without_multi_task_the_first_target_counts(schema, batch):
    model = cc.models.dcn(for_task(schema, "mmoe"), **SMALL)
    assert model(batch).shape == (40, 1) and model.blocks[0].columns.more_targets == ()
    one = cc.models.dcn(schema, **SMALL)
    np.testing.assert_array_equal(model(batch), one(batch))
    assert Columns.from_schema(for_task(schema, "mmoe")) == Columns.from_schema(schema)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"multi_task": "towers"}, "multi_task"),
        ({"multi_task": "mmoe", "mmoe_experts": 0}, "mmoe_experts is 0; it must be at least 1"),
        ({"multi_task": "esmm"}, "esmm needs two labels of 0 and 1"),
    ],
)
def test_refused(schema, given, message):
    with pytest.raises(InputError, match=message):
        cc.models.dcn(for_task(schema, "mmoe"), **SMALL, **given)
