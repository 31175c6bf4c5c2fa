"""The 64-bit hash functions of growing tables: splitmix64 (Steele, Lea and Flood, 2014).

They depend on their arguments only, so two machines and a replay get the same numbers.
"""

from __future__ import annotations

import numpy as np

from cowclip_merlin.kernels.compiled import compiled

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The step of splitmix64: 2^64 over the golden ratio."""


@compiled
def mix(x: np.uint64) -> np.uint64:
    """The output function of splitmix64: one to one on 64-bit numbers.

    >>> int(mix(GOLDEN))  # the first number of the generator with seed 0
    16294208416658607535
    """
    x = np.uint64(x)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def hash_id(field: int, id_: int) -> np.uint64:
    """The place of (field, id) in a hash table, uint64.

    Two pairs may have the same hash, so callers must compare the pairs.
    """
    return mix(np.uint64(id_) + np.uint64(field + 1) * GOLDEN)


@compiled
def seeded_hash(seed: int | np.uint64, field: int, number: int) -> np.uint64:
    """Where the stream of random numbers of (seed, field, number) starts, uint64.

    Mixed twice, so that pairs of field and number that are related get unrelated streams.
    """
    return mix(mix(np.uint64(seed) + np.uint64(field + 1) * GOLDEN) ^ np.uint64(number))


@compiled
def uniform(bits: np.uint64) -> np.float64:
    """A number in (0, 1] of 64 random bits, float64."""
    return (np.float64(bits >> np.uint64(11)) + 1.0) * (1.0 / 9007199254740992.0)
