"""How far approximate roots and quotients take a replay from the exact one.

The bound is checked with the largest errors that NVIDIA documents, and with launched kernels.
"""

import numpy as np
import pytest
from replay_arithmetic import (
    CALM,
    SIGNS,
    SWINGING,
    Adam,
    approximate_replay,
    exact_replay,
)

STEPS, N = 1000, 250
CRITEO, SHORT = Adam(l2=2e-5), Adam(beta_1=0.7, beta_2=0.872, epsilon=1e-8, l2=2e-7)
CASES = [
    (adam, lr, scale)
    for adam in (CRITEO, Adam(l2=0.0, epsilon=1e-8), Adam(beta_2=0.99), SHORT, Adam(l2=2e-2))
    for lr, scale in ((1e-4, 1e-4), (1e-4, 1e-2), (1e-2, 1e-2))
]


def differences(adam, lr, scale, signs, steps=STEPS):
    """In units of the bounds: of all numbers, and of the largest rate."""
    rates = adam.rates(lr, steps, first=10)
    state = adam.start(N, scale)
    exact, largest = exact_replay(state, rates, adam)
    found = np.abs(np.float64(exact) - approximate_replay(state, rates, adam, signs))
    assert (largest > 0).all() and np.isfinite(found).all()
    return adam.is_calm(rates), (found / largest).max(), found.max() / rates.max()


@pytest.mark.parametrize("signs", SIGNS)
def test_the_largest_documented_errors_stay_within_the_bound(signs):
    for adam, lr, scale in CASES[:: 1 if signs == "longer" else 4]:
        calm, of_weight, of_rate = differences(adam, lr, scale, SIGNS[signs])
        assert of_rate <= SWINGING
        assert of_weight <= CALM or not calm
    assert sum(adam.is_calm(adam.rates(lr, STEPS, 10)) for adam, lr, _ in CASES) >= 11


def test_the_bound_is_not_idle():
    """The worst signs come to a third of it, and errors 16 times as large exceed it."""
    case = Adam(epsilon=1e-8), 1e-2, 1e-2
    documented = differences(*case, lambda m, step: (-1.0, 1.0))[1]
    assert CALM / 3 <= documented <= CALM
    assert differences(*case, lambda m, step: (-16.0, 16.0))[1] > CALM


def test_weights_that_swing_differ_by_rounding_alone():
    """So the other bound is in units of a step, whatever the arithmetic."""
    calm, of_weight, of_rate = differences(Adam(l2=2e-2), 1e-3, 1e-4, SIGNS["none"])
    assert not calm and of_weight > 100 * CALM and of_rate <= SWINGING


@pytest.mark.parametrize("epsilon", [1e-8, 1e-7])
def test_divisors_are_where_the_error_of_a_quotient_is_documented(epsilon):
    """Down to v = 0 and up to the largest float32; an infinite v gives 0 both ways."""
    v = np.array([0, 1e-45, 1e-38, 1, np.finfo(np.float32).max], np.float32)
    divisors = np.sqrt(v) + np.float32(epsilon)
    assert (divisors >= 2.0**-126).all() and (divisors <= 2.0**126).all()
    assert np.float32(1) / (np.sqrt(np.float32(np.inf)) + np.float32(epsilon)) == 0
