"""The replay of missed steps in NumPy: exact, and with the errors that NVIDIA documents.

Each number is replayed on its own, without an early end. All arithmetic is float32, so the exact
replay is what `update="dense"` computes.
"""

from dataclasses import dataclass

import numpy as np

# Largest relative errors. PTX ISA 9.1, `sqrt.approx.ftz.f32`: 2^-23 for every positive finite
# number from 2^-126 on; the root of a smaller one, which a missed step of Adam flushes, is 0.
# PTX ISA 9.1, `div.approx.f32`, which is `__fdividef`: 2 units in the last place for divisors of
# 2^-126 to 2^126; beyond them the quotient is 0, or NaN if the dividend is infinite.
ROOT, QUOTIENT = 2.0**-23, 2.0**-22

CALM = 2e-6
"""Bound of the difference, in units of the weight's largest absolute value in the replay.

It holds for 1,000 steps if `2 * l2 * alpha <= epsilon`; the largest that a search found is 1.4e-6.
"""

SWINGING = 1.0
"""Bound of the difference, in units of the largest rate, for any settings.

L2 may make weights near 0 swing by about half a step of Adam. Then any rounding, such as that of
fused products, moves them to another place of the swing; the largest that a search found is 0.56.
"""


# The signs of the errors of root and quotient, from the first moment and the step's number.
# "longer" and "shorter" change each step by most; "up" and "down" push the weight to one side.
SIGNS = {
    "none": lambda m, step: (0.0, 0.0),
    "random": lambda m, step: np.random.default_rng(step).choice([-1.0, 1.0], (2, *m.shape)),
    "both up": lambda m, step: (1.0, 1.0),
    "both down": lambda m, step: (-1.0, -1.0),
    "longer": lambda m, step: (-1.0, 1.0),
    "shorter": lambda m, step: (1.0, -1.0),
    "up": lambda m, step: (np.sign(m), -np.sign(m)),
    "down": lambda m, step: (-np.sign(m), np.sign(m)),
}


@dataclass(frozen=True)
class Adam:
    """Settings of a replay; l2 is the factor of a weight in its gradient."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    l2: float = 0.0

    @property
    def constants(self):
        one = np.float32(1)
        keep = one - np.float32(self.beta_1), one - np.float32(self.beta_2)
        return (*keep, np.float32(self.epsilon), np.float32(self.l2))

    def rates(self, lr, steps, first=0):
        """Adam's rates with both bias corrections, float32 [steps]."""
        t = np.arange(first + 1, first + steps + 1)
        rates = lr * np.sqrt(1 - self.beta_2**t) / (1 - self.beta_1**t)
        return rates.astype(np.float32)

    def is_calm(self, rates):
        return self.l2 * rates.max() <= self.epsilon

    def start(self, shape, scale):
        """Weights and moments; a first gradient makes |m| / sqrt(v) as large as it can be."""
        rng = np.random.default_rng(0)
        w = rng.normal(0, scale, shape)
        v = 10 ** rng.uniform(-16, -4, shape) * rng.choice([0, 1], shape, p=[0.2, 0.8])
        ratio = (1 - self.beta_1) / np.sqrt(1 - self.beta_2)
        m = np.sqrt(v) * rng.uniform(-ratio, ratio, shape)
        return [x.astype(np.float32) for x in (w, m, v)]


def exact_replay(state, rates, adam):
    """Every operation rounds once; returns w and the largest |w|, both float32 [n]."""
    (w, m, v), (keep_m, keep_v, epsilon, l2) = state, adam.constants
    largest = np.abs(w)
    for rate in rates:
        g = l2 * w
        m = m + (g - m) * keep_m
        v = v + (g * g - v) * keep_v
        w = w - (m * rate) / (np.sqrt(v) + epsilon)
        largest = np.maximum(largest, np.abs(w))
    return w, largest


def approximate_replay(state, rates, adam, signs):
    """`missed_step` of `replay.cuh`, whose products are fused; returns w, float32 [n]."""
    (w, m, v), (keep_m, keep_v, epsilon, l2) = state, adam.constants
    for step, rate in enumerate(rates):
        g = l2 * w
        m = _fused(g - m, keep_m, m)
        v = _fused(_fused(g, g, -v), keep_v, v)
        of_root, of_quotient = signs(m, step)
        root = _changed(np.sqrt(np.float64(v)), of_root * ROOT)
        quotient = np.float64(m * rate) / (root + epsilon)
        w = w - _changed(quotient, of_quotient * QUOTIENT)
    return w


def _fused(a, b, c):
    """a * b + c, rounded once; float64 holds a product of two float32 exactly."""
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


def _changed(x, error):
    return (x * (1 + error)).astype(np.float32)
