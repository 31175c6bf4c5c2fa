"""The rule `sde` for Adagrad: an epoch moves a row as far at any batch (docs/method.md)."""

from dataclasses import replace

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.scaling import Hyperparameters

BASE = Hyperparameters(
    batch_size=8,
    optimizer="adagrad",
    embedding_lr=0.03,
    dense_lr=0.01,
    l2=0.0,
    initial_accumulator=0.01,
    epsilon=1e-3,
)


def moved(gradients, values):
    """Adagrad, step by step: the way of each column of `gradients`, whose rows are steps."""
    way, total = (
        np.zeros(gradients.shape[1]),
        np.full(gradients.shape[1], values.initial_accumulator),
    )
    for g in gradients.astype(np.float64):
        total += g * g
        way -= values.embedding_lr * g / (np.sqrt(total) + values.epsilon)
    return way


def epoch(batch, *, rows=2**15, coordinates=200, share=0.5, mean=0.02, noise=1.0, seed=0):
    """Gradients of the mean loss in one epoch, for ids in a share of the rows."""
    rng = np.random.default_rng(seed)
    each = rng.normal(mean, noise, (rows, coordinates)) * (rng.random((rows, coordinates)) < share)
    return each.reshape(rows // batch, batch, coordinates).mean(1)


@pytest.mark.parametrize("s", [8, 32])
@pytest.mark.parametrize(("start", "within"), [(0.0, 0.12), (0.01, 0.12), (100.0, 0.05)])
def test_where_noise_dominates_the_batch_does_not_matter(s, start, within):
    """The first steps differ without an initial accumulator: the first is a rate long."""
    base = replace(BASE, initial_accumulator=start)
    small, big = (moved(epoch(n), cc.scale(base, to=n)) for n in (8, 8 * s))
    assert big.mean() == pytest.approx(small.mean(), rel=within)
    if start == 100:
        assert big.std() == pytest.approx(small.std(), rel=within)
        for rule, share in (("none", 1 / s), ("sqrt_star", s**-0.5)):
            other = moved(epoch(8 * s), cc.scale(base, to=8 * s, rule=rule))
            assert other.mean() == pytest.approx(small.mean() * share, rel=0.6)


@pytest.mark.parametrize("s", [8, 128])
def test_where_gradients_agree_the_way_shrinks_by_the_root(s):
    base = replace(BASE, initial_accumulator=0.0)
    same = {"mean": 1.0, "noise": 0.0, "share": 1.0}
    small = moved(epoch(8, rows=2**16, coordinates=1, **same), base)
    big = moved(epoch(8 * s, rows=2**16, coordinates=1, **same), cc.scale(base, to=8 * s))
    assert small / big == pytest.approx(s**0.5, rel=0.1)


@pytest.mark.parametrize("s", [3, 8, 1000])
def test_an_id_with_one_occurrence_per_step_moves_alike(s):
    each = np.random.default_rng(1).normal(0, 1, (50, 7))
    small, big = moved(each / 8, BASE), moved(each / (8 * s), cc.scale(BASE, to=8 * s))
    np.testing.assert_allclose(big, small, rtol=1e-12)


@pytest.mark.parametrize("update", ["lazy", "exact", "dense"])
def test_the_optimizer_moves_such_an_id_alike_bit_for_bit(tf, update):
    """A factor of 8 changes no digit of a float32."""
    rng, ends = np.random.default_rng(2), []
    start = rng.normal(0, 0.1, (9, 3)).astype(np.float32)
    steps = [
        (rng.permutation(9)[:4], rng.normal(0, 1, (4, 3)).astype(np.float32)) for _ in range(9)
    ]
    for values in (BASE, cc.scale(BASE, to=64)):
        optimizer = cc.CowClip.of(values, update=update)
        table, weight = tf.Variable(start), tf.Variable(start)
        for ids, each in steps:
            g = each / np.float32(values.batch_size)
            slices = tf.IndexedSlices(tf.constant(g), tf.constant(ids), start.shape)
            optimizer.apply_gradients([(slices, table), (tf.constant(g[0] + 0 * start), weight)])
        ends.append((table.numpy(), weight.numpy()))
    np.testing.assert_array_equal(ends[1], ends[0])
    assert all(np.abs(end - start).max() > 0.005 for end in ends[0])
    one = replace(BASE, initial_accumulator=1.0)
    assert cc.CowClip.of(one).embedding_optimizer.get_config()["initial_accumulator_value"] == 1
