"""Split rows into train and test by their position alone, so that the split can stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cowclip_merlin import choices
from cowclip_merlin.checks import check_whole, one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array


@dataclass(frozen=True, kw_only=True)
class Split:
    """How to split rows into train and test.

    Attributes:
        how: "random": by a seeded hash of the position; "time": the last rows are the test rows.
        test_fraction: share of test rows, in [0, 1); 0: all rows are training rows.
        seed: seed of the hash.

    Raises:
        InputError: if a value is unknown or out of range.
    """

    how: str = "random"
    test_fraction: float = 0.1
    seed: int = 1234

    def __post_init__(self) -> None:
        """Reject values that would leave no training rows."""
        one_of("split", self.how, choices.SPLIT_METHODS)
        if not 0 <= self.test_fraction < 1:
            raise InputError(f"`test_fraction` is {self.test_fraction}; give 0 or more, below 1")
        check_whole({"`seed`": self.seed})
        if self.seed < 0:
            raise InputError(f"`seed` is {self.seed}; it must not be negative")


def position_hash(position: Array, seed: int) -> Array:
    """Hash each row position to 64 random bits: splitmix64 (Steele et al., OOPSLA 2014).

    Args:
        position: uint64 [n], a NumPy or CuPy array; the result has the same type.
        seed: any number >= 0.
    """
    with np.errstate(over="ignore"):
        x = position + np.uint64(seed % 2**64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def is_test(position: Array, split: Split, *, total: int | None = None) -> Array:
    """Return which rows are test rows, bool [n].

    Args:
        position: index of the row in the input, counted over all files, uint64 [n].
        split: how to split the rows.
        total: rows of the whole input; required for a split by time.

    >>> is_test(np.arange(5, dtype=np.uint64), Split(how="time", test_fraction=0.4), total=5)
    array([False, False, False,  True,  True])
    """
    if split.how == "time":
        return position >= np.uint64(round(total * (1 - split.test_fraction)))
    return position_hash(position, split.seed) < np.uint64(int(split.test_fraction * 2**64))
