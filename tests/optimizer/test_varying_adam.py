"""Batches of several sizes in one training: betas, units of the moments, bias corrections."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.row_optimizers import VaryingAdam

ROWS, DIM = 9, 3
BASE = cc.Hyperparameters(batch_size=8, embedding_lr=1e-2, dense_lr=2e-2, l2=1e-3, r=0.5, zeta=1e-2)


class Slow:
    """Lazy rows and a dense weight in float64, in another way than the optimizer.

    Before a batch that is `s` times as large as the one before, all second moments are divided by
    `s`. Then the step is the plain one of its own batch.
    """

    def __init__(self, table, kernel):
        self.w = [np.float64(table), np.float64(kernel)]
        self.m, self.v = ([np.zeros_like(x) for x in self.w] for _ in range(2))
        self.batch, self.products = BASE.batch_size, np.ones(2)

    def step(self, at, ids, values, g):
        for v in self.v:
            v *= self.batch / at.batch_size
        self.batch = at.batch_size
        self.products *= [at.beta_1, at.beta_2]
        correction = np.sqrt(1 - self.products[1]) / (1 - self.products[0])
        for k in set(ids):
            cnt, row = ids.count(k), self.w[0][k]
            whole = sum(np.float64(v) for i, v in zip(ids, values) if i == k) + 2 * at.l2 * row
            bound = max(at.r * np.linalg.norm(row), np.sqrt(DIM) * at.zeta)
            whole *= min(1, cnt * bound / np.linalg.norm(whole))
            self.adam(at, 0, k, whole, at.embedding_lr * correction)
        self.adam(at, 1, slice(None), np.float64(g), at.dense_lr * correction)

    def adam(self, at, part, at_rows, g, alpha):
        m, v = self.m[part], self.v[part]
        m[at_rows] = at.beta_1 * m[at_rows] + (1 - at.beta_1) * g
        v[at_rows] = at.beta_2 * v[at_rows] + (1 - at.beta_2) * g**2
        self.w[part][at_rows] -= alpha * m[at_rows] / (np.sqrt(v[at_rows]) + at.epsilon)


def optimizer_of(backend):
    inner = [VaryingAdam(rate) for rate in (BASE.embedding_lr, BASE.dense_lr)]
    thresholds = {"r": BASE.r, "zeta": BASE.zeta}
    return cc.CowClip(*inner, l2=BASE.l2, update="lazy", backend=backend, **thresholds)


def steps_by_factor(tf, optimizer, table, kernel, factors):
    """A traced step for each factor, with its rates, as `OnlineTrainer` has them."""

    def trace(at, s):
        @tf.function
        def step(ids, values, g):
            slices = tf.IndexedSlices(values, ids, tf.constant([ROWS, DIM]))
            optimizer.apply_gradients([(slices, table), (g, kernel)])

        specs = ([None], tf.int32), ([None, DIM], tf.float32), ([2], tf.float32)
        betas = {"beta_1": at.beta_1, "beta_2": at.beta_2}
        with optimizer.tracing_with(l2=at.l2, r=at.r, zeta=at.zeta, squares=s, **betas):
            return step.get_concrete_function(*(tf.TensorSpec(*each) for each in specs))

    at = {s: cc.scale(BASE, to=8 * s, rule="sde") for s in factors}
    return at, {s: trace(at[s], s) for s in factors}


@settings(max_examples=6)
@given(
    factors=st.lists(st.sampled_from([1, 4, 32]), min_size=5, max_size=25),
    backend=st.sampled_from(["numba", "tensorflow"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_factors_that_change_from_step_to_step(tf, factors, backend, seed):
    rng = np.random.default_rng(seed)
    start = rng.normal(0, 0.1, (ROWS, DIM)).astype("f")
    table, kernel = tf.Variable(start), tf.Variable([0.5, -0.5])
    optimizer, slow = optimizer_of(backend), Slow(start, kernel.numpy())
    with tf.device("CPU"):
        optimizer.create_state([table, kernel])
        at, steps = steps_by_factor(tf, optimizer, table, kernel, sorted(set(factors)))
    for s in factors:
        ids = rng.integers(0, ROWS, 6).tolist()
        values = (rng.normal(0, 1, (6, DIM)) / s).astype("f")
        g = rng.normal(0.3, 1 / s**0.5, 2).astype("f")
        optimizer.embedding_optimizer.learning_rate = at[s].embedding_lr * s**0.5
        optimizer.dense_optimizer.learning_rate = at[s].dense_lr * s**0.5
        steps[s](tf.constant(ids, tf.int32), tf.constant(values), tf.constant(g))
        slow.step(at[s], ids, values, g)
    np.testing.assert_allclose(table.numpy(), slow.w[0], atol=2e-5)
    np.testing.assert_allclose(kernel.numpy(), slow.w[1], atol=2e-5)


def test_with_one_size_it_is_adam(tf):
    rng, pair = np.random.default_rng(0), []
    for kind in (VaryingAdam, tf.keras.optimizers.legacy.Adam):
        pair.append((kind(0.01, 0.7, 0.9, epsilon=1e-8), tf.Variable([1.0, 2.0])))
    for _ in range(50):
        g = tf.constant(rng.normal(0, 1, 2), tf.float32)
        for adam, w in pair:
            adam.apply_gradients([(g, w)])
    np.testing.assert_allclose(pair[0][1].numpy(), pair[1][1].numpy(), rtol=2e-6)


def test_cuda_kernels_have_constant_betas(tf):
    with pytest.raises(InputError, match=r'backend="cupy" .*constant betas'):
        optimizer_of("cupy")


def test_rows_take_the_moments_that_the_optimizer_has():
    adam = VaryingAdam(1e-3)
    adam.moments = replace(adam.moments, beta_1=0.5, beta_2=0.9, squares=4.0)
    config = cc.CowClip(adam, "adam", update="lazy", backend="numba").config
    assert (config.beta_1, config.beta_2, config.squares) == (0.5, 0.9, 4.0)
