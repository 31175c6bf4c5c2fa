"""Random numbers that depend only on seed, stream and counter, so their order is arbitrary."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cowclip_merlin.types import Floats

Words = npt.NDArray[np.uint64]

PILOT_ROWS = 50_000
"""Rows whose mean probability sets the intercept of a log."""


def random_words(seed: int, stream: int, counter: npt.ArrayLike) -> Words:
    """Return 64 random bits for each counter (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.asarray(counter, np.uint64) + np.uint64(stream) * np.uint64(0xD1B54A32D192ED03)
        x = (x ^ np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return x ^ (x >> np.uint64(31))


def uniform(seed: int, stream: int, counter: npt.ArrayLike) -> Floats:
    """Return uniform numbers in (0, 1)."""
    words = random_words(seed, stream, counter)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53


def normal(seed: int, stream: int, counter: npt.ArrayLike) -> Floats:
    """Return normal numbers (Box and Muller); the streams `stream` and `stream + 500` are used."""
    radius = np.sqrt(-2 * np.log(uniform(seed, stream, counter)))
    return radius * np.cos(2 * np.pi * uniform(seed, stream + 500, counter))


def power_law_ranks(u: Floats, size: int, exponent: float) -> npt.NDArray[np.int64]:
    """Return ranks from 1 to `size` with frequencies rank^-exponent.

    Args:
        u: uniform numbers, [n].
        size: the largest rank.
        exponent: exponent of the power law, not 1.
    """
    tail = 1 - exponent
    # Inverse of the distribution function of a continuous power law on [1, size + 1).
    rank = ((((size + 1.0) ** tail - 1) * u + 1) ** (1 / tail)).astype(np.int64)
    return np.clip(rank, 1, size)


def sigmoid(logits: Floats) -> Floats:
    """Return the probabilities of these logits."""
    return 1 / (1 + np.exp(-logits))


def draw_clicks(seed: int, stream: int, rows: Words, probabilities: Floats) -> npt.NDArray[np.int8]:
    """Draw labels with these probabilities, [n]."""
    return (uniform(seed, stream, rows) < probabilities).astype(np.int8)


def intercept_for(rate: float, mean_with: Callable[[float], float]) -> float:
    """Find by bisection the intercept with which the mean probability equals the rate.

    Args:
        rate: the mean probability to reach.
        mean_with: maps an intercept to the mean probability.
    """
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if mean_with(middle) > rate else (middle, high)
    return middle
