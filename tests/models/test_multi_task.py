"""Models with several targets: ESMM's product, losses, and what is refused."""

import numpy as np
from by_hand import SMALL, for_task

import cowclip_merlin as cc
from cowclip_merlin.models import Columns
from cowclip_merlin.models.multi_task import of_both


def test_esmm_has_gradients_where_probabilities_saturate(tf):
    z = tf.Variable([[200.0, -300.0], [-300.0, 200.0], [400.0, 400.0], [0.0, 0.0]])
    with tf.GradientTape() as tape:
        both = of_both(z)
        second = both[:, 1]
    gradient = tape.gradient(second, z).numpy()
    assert np.isfinite(both.numpy()).all() and np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient[:2], [[0, 1], [1, 0]], atol=1e-6)


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
