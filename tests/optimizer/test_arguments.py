"""Arguments of CowClip: wrong ones are refused, and patterns find their tables."""

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError


def halved(pairs):
    return [
        (type(g)(g.values / 2, g.indices, g.dense_shape) if hasattr(g, "indices") else g / 2, v)
        for g, v in pairs
    ]


@pytest.mark.parametrize("setting", [{"clipvalue": 1e-3}, {"gradient_transformers": [halved]}])
def test_lazy_keeps_what_the_optimizer_does_to_gradients(tf, setting):
    """With all rows in the batch it is "dense"."""
    ends = []
    for update in ("dense", "lazy"):
        table = tf.Variable(tf.ones([3, 2]))
        # SGD would show a scale, Adam only a large epsilon.
        adam = tf.keras.optimizers.legacy.Adam(0.1, epsilon=1.0, **setting)
        optimizer = cc.CowClip(adam, l2=0.0, update=update)
        slices = tf.IndexedSlices(tf.fill([3, 2], 0.5), tf.range(3), tf.constant([3, 2]))
        optimizer.apply_gradients([(slices, table)])
        ends.append(table.numpy())
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-6)


def test_variables_in_a_configuration_are_refused(tf):
    optimizer = cc.CowClip(skip=[tf.Variable(tf.ones([2, 2]), name="wide")])
    with pytest.raises(InputError, match="wide"):
        optimizer.get_config()


def sparse(tf, variable):
    return tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), (3, 2)), variable


@pytest.mark.parametrize("update", ["dense", "exact", "lazy"])
@pytest.mark.parametrize("argument", ["embeddings", "skip"])
def test_a_pattern_that_matches_no_table_is_named(tf, argument, update):
    """Without a word nothing would be clipped, or nothing left unclipped."""
    table, kernel = (tf.Variable(tf.ones([3, 2]), name=name) for name in ("users", "kernel"))
    pairs = [sparse(tf, table), (tf.ones([3, 2]), kernel)]
    cc.CowClip(**{argument: ["^users", "sers"], "update": update}).apply_gradients(pairs)
    before = table.numpy()
    for patterns in (["typo"], ["users", "typo"]):
        optimizer = cc.CowClip(**{argument: patterns, "update": update})
        with pytest.raises(InputError, match=f"{argument}: 'typo' matches no table .*'use"):
            optimizer.apply_gradients(pairs)
        np.testing.assert_array_equal(table.numpy(), before)
    with pytest.raises(InputError, match="skip: 'kernel' matches no table"):
        cc.CowClip(skip=["kernel"], update=update).apply_gradients(pairs)


def test_gradients_may_come_in_several_calls(tf):
    one, two = (tf.Variable(tf.ones([3, 2]), name=name) for name in ("one", "two"))
    for argument in ("embeddings", "skip"):
        optimizer = cc.CowClip(**{argument: ["one", "two"]})
        with pytest.raises(InputError, match=r"'two' .*another call .*register_tables\(\[table\]"):
            optimizer.apply_gradients([sparse(tf, one)])
        optimizer.register_tables([two])
        for table in (one, two, one):
            optimizer.apply_gradients([sparse(tf, table)])
        assert int(optimizer.iterations) == 3


def test_a_table_without_a_gradient_in_this_step_matches_too(tf):
    one, two = (tf.Variable(tf.ones([3, 2]), name=name) for name in ("one", "two"))
    optimizer = cc.CowClip(embeddings=["one", "two"], skip=["two"])
    optimizer.apply_gradients([sparse(tf, one), (None, two)])
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize("by", ["variable", "pattern"])
def test_which_tables_are_clipped(tf, by):
    names = ["same"] * 3 if by == "variable" else ["embeddings", "wide_embeddings", "kernel"]
    tables = clipped, skipped, other = [tf.Variable(tf.ones([3, 2]), name=x) for x in names]
    which = {"embeddings": tables[:2], "skip": [skipped]}
    if by == "pattern":
        which = {"embeddings": ["embeddings"], "skip": ["^wide"]}
    optimizer = cc.CowClip("sgd", "sgd", l2=0.0, **which)
    g = tf.IndexedSlices(tf.constant([[300.0, 400.0]]), tf.constant([1]), tf.constant([3, 2]))
    optimizer.apply_gradients([(g, clipped), (g, skipped), (g, other)])
    moved = [1 - v.numpy() for v in (clipped, skipped, other)]
    np.testing.assert_allclose(moved[0][1], 0.01 * np.sqrt(2) * np.array([0.6, 0.8]), rtol=1e-5)
    for whole in moved[1:]:
        np.testing.assert_allclose(whole[1], [3.0, 4.0], rtol=1e-6)
    assert not np.concatenate([x[[0, 2]] for x in moved]).any()
