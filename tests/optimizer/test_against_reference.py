"""The optimizer against Algorithm 1 in NumPy float64."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cowclip_merlin as cc

STEPS = 200
LR = 1e-2


def batches(rng, rows, dim, size, *, absent):
    """Skewed ids with duplicates; some ids never come, some gradients are zero."""
    for _ in range(STEPS):
        n = int(rng.integers(0, size + 1))
        ids = (rng.zipf(1.3, n) - 1) % max(1, rows - absent)
        values = rng.normal(0, rng.choice([0, 1e-4, 0.05, 2.0]), (n, dim))
        yield ids, values.astype(np.float32)


def make_step(tf, optimizer, table):
    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None, table.shape[1]], tf.float32),
        ]
    )
    def step(ids, values):
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids, table.shape), table)])

    return step


@pytest.mark.thorough
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    update=st.sampled_from(["dense", "lazy"]),
    by_kernels=st.booleans(),
    rows=st.integers(1, 12),
    dim=st.integers(2, 9),
    size=st.integers(1, 24),
    r=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 10.0]),
    zeta=st.sampled_from([0.0, 1e-5, 1e-2]),
    l2=st.sampled_from([0.0, 1e-5, 1e-2, 0.4, 0.9]),
    zero_rows=st.booleans(),
    betas=st.sampled_from([(0.9, 0.999), (0.7, 0.968), (0.0, 0.5), (0.5, 0.9), (0.99, 0.9999)]),
    epsilon=st.sampled_from([1e-7, 1e-8]),
    seed=st.integers(0, 2**32 - 1),
)
def test_two_hundred_steps(
    tf, kernels, reference, update, by_kernels, rows, dim, size, r, zeta, l2, zero_rows, betas,
    epsilon, seed
):  # fmt: skip
    backend = kernels if by_kernels else "tensorflow"
    numbers = {"r": r, "zeta": zeta, "l2": l2, "update": update}
    adam = tf.keras.optimizers.legacy.Adam(LR, *betas, epsilon=epsilon)
    if backend == "cupy" and update == "dense" and 2 * l2 > r:  # tests/optimizer/test_arguments.py
        backend = "auto"
    rng = np.random.default_rng(seed)
    start = rng.normal(0, 0.1, (rows, dim)).astype(np.float32)
    if zero_rows:
        start[::2] = 0
    table = tf.Variable(start)
    optimizer = cc.CowClip(adam, backend=backend, **numbers)
    expected = reference(start, lr=LR, betas=betas, epsilon=epsilon, **numbers)
    step = make_step(tf, optimizer, table)
    for ids, values in batches(rng, rows, dim, size, absent=rows // 3):
        before = table.numpy()
        step(tf.constant(ids), tf.constant(values))
        expected.step(ids, values)
        # Rounding near a zero of m flips Adam's sign, so both go on from the same weights.
        assert np.abs(table.numpy() - expected.w).max() <= 2e-5 * max(1, np.abs(before).max())
        expected.w = table.numpy().astype(np.float64)


@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_without_resynchronising(tf, reference, update):
    rng = np.random.default_rng(0)
    start = rng.normal(0, 0.01, (30, 5)).astype(np.float32)
    table = tf.Variable(start)
    schedule = tf.keras.optimizers.schedules.PolynomialDecay(LR, 100, LR / 10)
    optimizer = cc.CowClip(tf.keras.optimizers.legacy.Adam(schedule), l2=1e-2, update=update)
    expected = reference(
        start,
        lr=lambda t: float(schedule(t)),
        l2=1e-2,
        r=1.0,
        zeta=1e-5,
        update=update,
    )
    step = make_step(tf, optimizer, table)
    for _ in range(STEPS):
        ids = (rng.zipf(1.3, 12) - 1) % 30
        values = rng.normal(0, 0.05, (12, 5)).astype(np.float32)
        step(tf.constant(ids), tf.constant(values))
        factors = np.array(expected.step(ids, values))
        assert optimizer.clipped_share.numpy() == pytest.approx((factors < 1).mean(), abs=1e-6)
        assert optimizer.mean_clip_factor.numpy() == pytest.approx(factors.mean(), rel=1e-4)
    np.testing.assert_allclose(table.numpy(), expected.w, atol=1e-6)


@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_one_dimensional_tables_get_l2_but_no_clip(tf, reference, update):
    rng = np.random.default_rng(1)
    start = rng.normal(0, 0.01, (8, 1)).astype(np.float32)
    wide = tf.Variable(start)
    optimizer = cc.CowClip(tf.keras.optimizers.legacy.Adam(LR), l2=0.1, update=update)
    expected = reference(start, lr=LR, l2=0.1, r=1, zeta=1e-5, update=update, clipped=False)
    clipped = reference(start, lr=LR, l2=0.1, r=1, zeta=1e-5, update=update)
    step = make_step(tf, optimizer, wide)
    for scale in (5.0, 0.01, 1.0) * 10:
        ids, values = rng.integers(0, 6, 9), rng.normal(0, scale, (9, 1)).astype(np.float32)
        step(tf.constant(ids), tf.constant(values))
        expected.step(ids, values)
        clipped.step(ids, values)
    np.testing.assert_allclose(wide.numpy(), expected.w, atol=1e-6)
    assert np.abs(clipped.w - expected.w).max() > 1e-3


def test_skip_names_a_table_by_regular_expression(tf, reference):
    start = np.full((4, 3), 0.01, np.float32)
    tables = {name: tf.Variable(start, name=name) for name in ("wide_embeddings", "embeddings")}
    optimizer = cc.CowClip(tf.keras.optimizers.legacy.Adam(LR), l2=0.0, skip=("^wide",))
    rng = np.random.default_rng(2)
    expected = {
        name: reference(
            start, lr=LR, l2=0, r=1, zeta=1e-5, update="dense", clipped=name == "embeddings"
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


def test_dense_weights_are_plain_adam(tf):
    kernel, plain = tf.Variable([[1.0, -2.0]]), tf.Variable([[1.0, -2.0]])
    table = tf.Variable(tf.ones([3, 2]))
    optimizer = cc.CowClip(dense_optimizer=tf.keras.optimizers.legacy.Adam(0.01), l2=0.5)
    adam = tf.keras.optimizers.legacy.Adam(0.01)
    rng = np.random.default_rng(3)
    for _ in range(20):
        g = tf.constant(rng.normal(0, 50, (1, 2)), tf.float32)
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), (3, 2))
        optimizer.apply_gradients([(slices, table), (g, kernel)])
        adam.apply_gradients([(g, plain)])
    np.testing.assert_array_equal(kernel.numpy(), plain.numpy())


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
