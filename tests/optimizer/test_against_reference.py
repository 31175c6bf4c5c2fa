"""The optimizer against Algorithm 1 in NumPy float64."""

import numpy as np
import pytest

import cowclip_merlin as cc

STEPS = 200
LR = 1e-2


def test_skip_names_a_table_by_regular_expression(tf, reference):
    start = np.full((4, 3), 0.01, np.float32)
    tables = {name: tf.Variable(start, name=name) for name in ("wide_embeddings", "embeddings")}
    optimizer = cc.CowClip(tf.keras.optimizers.legacy.Adam(LR), l2=0.0, skip=("^wide",))
    rng = np.random.default_rng(2)
    expected = {
        name: reference(
            start,
            lr=LR,
            l2=0,
            r=1,
            zeta=1e-5,
            update="dense",
            clip="cowclip" if name == "embeddings" else "none",
        )
        for name in tables
    }
    for scale in (3.0, 0.01, 0.3):
        values = rng.normal(0, scale, (5, 3)).astype(np.float32)
        ids = np.array([0, 1, 1, 2, 0])
        optimizer.apply_gradients(
            [
                (tf.IndexedSlices(tf.constant(values), tf.constant(ids), (4, 3)), t)
                for t in tables.values()
            ]
        )
        for e in expected.values():
            e.step(ids, values)
    for name, table in tables.items():
        np.testing.assert_allclose(table.numpy(), expected[name].w, atol=1e-6)
    assert np.abs(tables["wide_embeddings"].numpy() - tables["embeddings"].numpy()).max() > 1e-4


@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_the_order_of_variables_does_not_matter(tf, update):
    rng = np.random.default_rng(4)
    shapes = {"a": (6, 3), "b": (4, 5), "wide": (6, 1), "kernel": (3, 2)}
    start = {k: rng.normal(0, 0.1, s).astype(np.float32) for k, s in shapes.items()}
    grads = [
        {
            k: (rng.integers(0, s[0], 7), rng.normal(0, 1, (7, s[1])).astype(np.float32))
            for k, s in shapes.items()
        }
        for _ in range(10)
    ]
    ends = []
    for order in (["a", "b", "wide", "kernel"], ["kernel", "wide", "b", "a"]):
        variables = {k: tf.Variable(start[k], name=k) for k in order}
        optimizer = cc.CowClip(l2=1e-2, update=update)
        for batch in grads:
            pairs = []
            for k in order:
                ids, values = batch[k]
                slices = tf.IndexedSlices(tf.constant(values), tf.constant(ids), shapes[k])
                g = tf.constant(values[:3, :2]) if k == "kernel" else slices
                pairs.append((g, variables[k]))
            optimizer.apply_gradients(pairs)
        ends.append({k: v.numpy() for k, v in variables.items()})
    for k in shapes:
        np.testing.assert_array_equal(ends[0][k], ends[1][k])
