"""Rows that the launched kernels have replayed, on a GPU or emulated, against the exact replay."""

import numpy as np
import pytest
from replay_arithmetic import CALM, SIGNS, SWINGING, Adam, approximate_replay, exact_replay

import cowclip_merlin as cc

ROWS, D = 12, 10
CASES = [
    (Adam(l2=2e-5), 1e-4, 1e-2),
    (Adam(epsilon=1e-8), 1e-2, 1e-2),
    (Adam(l2=2e-2), 1e-3, 1e-3),
]


STEPS = {"emulated": 60, "gpu": 1000}


def launched(tf, adam, lr, state, steps):
    """Make steps of row 0 alone; returns the other rows [ROWS - 1, D], and the rates [steps]."""
    table = tf.Variable(state[0], name="embeddings")
    inner = tf.keras.optimizers.legacy.Adam(lr, adam.beta_1, adam.beta_2, adam.epsilon)
    opt = cc.CowClip(inner, update="exact", backend="cupy", l2=adam.l2 / 2, clip="none")
    opt.catch_up(table, tf.constant([0]))
    for name, value in zip("mv", state[1:]):
        inner.get_slot(table, name).assign(value)

    @tf.function
    def train():
        for _ in tf.range(steps):
            g = tf.IndexedSlices(tf.ones([1, D]), tf.constant([0]), tf.constant([ROWS, D]))
            opt.catch_up(table, tf.constant([0]))
            opt.apply_gradients([(g, table)])

    train()
    opt.flush()
    rates = opt.tables.of(table).state.history.numpy()[:steps]
    return table.numpy()[1:], rates


@pytest.mark.one_case
@pytest.mark.parametrize("case", range(len(CASES)))
def test_replayed_rows_are_within_the_bound(tf, where, case):
    adam, lr, scale = CASES[case]
    state = adam.start((ROWS, D), scale)
    w, rates = launched(tf, adam, lr, state, STEPS[where])
    exact, largest = exact_replay([x[1:] for x in state], rates, adam)
    assert not np.array_equal(exact, state[0][1:])
    found, rested = np.abs(np.float64(exact) - w), 2e-8 * rates.max()  # see `at_rest`
    assert (found <= SWINGING * rates.max()).all()
    assert (found <= CALM * largest + rested).all() or not adam.is_calm(rates)


@pytest.mark.system
def test_the_kernels_compute_what_the_model_of_their_errors_computes(tf, emulated):
    """Without errors, as in the emulator, the bits are the same."""
    adam = Adam(l2=2e-5)
    state = adam.start((ROWS, D), 1e-2)
    w, rates = launched(tf, adam, 1e-4, state, 30)
    expected = approximate_replay([x[1:] for x in state], rates, adam, SIGNS["none"])
    np.testing.assert_array_equal(w, expected)
    assert (expected != exact_replay([x[1:] for x in state], rates, adam)[0]).any()
