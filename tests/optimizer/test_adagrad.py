"""Adagrad as the embedding optimizer, against NumPy float64."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError

ROWS, DIM, STEPS, LR = 9, 3, 40, 0.05


def numpy_adagrad(w, batches, *, l2, start, lazy=False, clipped=False, r=1.0, zeta=1e-5):
    """Row by row: sum, L2, clip, accumulate, move."""
    w, sums = w.astype(np.float64), np.full(w.shape, start)
    for ids, values in batches:
        for k in range(len(w)):
            mine = np.flatnonzero(ids == k)
            if lazy and not len(mine):
                continue
            g = values[mine].astype(np.float64).sum(0) + 2 * l2 * w[k]
            limit = max(len(mine), 1) * max(r * np.linalg.norm(w[k]), np.sqrt(DIM) * zeta)
            if clipped and np.linalg.norm(g) > limit:
                g = g * limit / np.linalg.norm(g)
            sums[k] += g**2
            w[k] -= LR * g / (np.sqrt(sums[k]) + 1e-7)
    return w


def log(seed):
    rng = np.random.default_rng(seed)
    w = rng.normal(0, 0.1, (ROWS, DIM)).astype(np.float32)
    batches = []
    for _ in range(STEPS):
        ids = (rng.zipf(1.3, 12) - 1) % (ROWS - 2)  # two ids never come
        batches.append((ids, rng.normal(0, rng.choice([1e-3, 1.0]), (12, DIM)).astype(np.float32)))
    return w, batches


def trained(tf, w, batches, *, start=0.1, **arguments):
    table = tf.Variable(w)
    inner = tf.keras.optimizers.legacy.Adagrad(LR, initial_accumulator_value=start)
    optimizer = cc.CowClip(inner, **arguments)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, DIM])])
    def step(ids, values):
        optimizer.catch_up(table, ids)
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids, w.shape), table)])

    for batch in batches:
        step(*map(tf.constant, batch))
    optimizer.flush()
    return table.numpy()


@pytest.mark.thorough
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    update=st.sampled_from(["dense", "lazy"]),
    clip=st.sampled_from(["none", "cowclip"]),
    l2=st.sampled_from([0.0, 1e-4, 1e-2]),
    start=st.sampled_from([0.1, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_forty_steps(tf, update, clip, l2, start, seed):
    w, batches = log(seed)
    got = trained(tf, w, batches, update=update, clip=clip, l2=l2, start=start)
    expected = numpy_adagrad(
        w, batches, l2=l2, start=start, lazy=update == "lazy", clipped=clip == "cowclip"
    )
    np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
@pytest.mark.parametrize("clip", ["none", "cowclip"])
def test_without_l2_exact_is_dense_bit_for_bit(tf, optimizer, clip):
    w, batches = log(1)
    ends = {}
    for update in ("dense", "exact"):
        table = tf.Variable(w)
        opt = cc.CowClip(optimizer, update=update, clip=clip, l2=0.0)
        for ids, values in batches:
            opt.apply_gradients(
                [(tf.IndexedSlices(*map(tf.constant, (values, ids)), w.shape), table)]
            )
        ends[update] = table.numpy()
    np.testing.assert_array_equal(ends["exact"], ends["dense"])
    assert np.abs(ends["exact"][: ROWS - 2] - w[: ROWS - 2]).max() > 1e-3
    np.testing.assert_array_equal(ends["exact"][ROWS - 2 :], w[ROWS - 2 :])


def test_exact_touches_only_the_rows_of_the_batch(tf):
    """An id outside of it may then hold anything: NaN spreads nowhere."""
    w, batches = log(2)
    w[ROWS - 1] = np.nan
    got = trained(tf, w, batches, update="exact", clip="none", l2=0.0)
    assert np.isfinite(got[: ROWS - 1]).all() and np.isnan(got[ROWS - 1]).all()


def test_the_configuration_keeps_what_was_asked_for(tf):
    optimizer = cc.CowClip("adagrad", update="exact", l2=0.0)
    config = optimizer.get_config()
    assert config["update"] == "exact" and optimizer.backend == "tensorflow"
    assert cc.CowClip.from_config(config).get_config() == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"l2": 1e-5}, r"not with Adagrad and l2 1e-05; .*\"dense\"$"),
        ({"l2": 0.0, "backend": "numba"}, "not with Adagrad; .*backend="),
        ({"l2": 0.0, "embedding_optimizer": "rmsprop"}, 'not with RMSprop; .*"dense"$'),
    ],
)
def test_what_exact_cannot_do_is_refused(tf, arguments, message):
    with pytest.raises(InputError, match=message):
        cc.CowClip(**({"embedding_optimizer": "adagrad", "update": "exact"} | arguments))
