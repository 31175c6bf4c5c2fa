"""The first values of a row: they depend on seed, field and id only, not on the row or the order.

So a replay, a second trainer and a test get the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from cowclip_merlin.kernels.compiled import compiled
from cowclip_merlin.tables.id_map import GOLDEN, mix, seeded_hash, uniform
from cowclip_merlin.types import Array

ABSENT_SEED = 0x5851F42D4C957F2D
"""Added to the seed for absent rows: no id has the same numbers."""


@dataclass(frozen=True, kw_only=True)
class RowMemory:
    """The memory of one embedding table.

    Attributes:
        w: weights, float32 [capacity, d], contiguous.
        slots: what the optimizer keeps for each row, by name: Adam's moments "m" and "v", like
            `w`, or row-wise Adagrad's "accumulator", float32 [capacity, 1]; empty where nothing is
            trained.
        start: first value of the slots.
        std: standard deviation of a row's first values; 0 for zeros.
        seed: of the first values; tables of one model need different ones.
        check: raises an InputError if the arrays are no longer the memory of the table.
    """

    w: Array
    slots: Mapping[str, Array] = field(default_factory=dict)
    start: float = 0.0
    std: float = 0.0
    seed: int = 0
    check: Callable[[], None] = lambda: None

    def initialize(self, rows: Array, fields: Array, ids: Array) -> None:
        """Write the first values of ids into their rows, and `start` into the slots.

        Args:
            rows: int32 [n].
            fields: index of each id's field, integer [n].
            ids: int64 [n].
        """
        _write_normal(self.w, rows, fields, ids, np.uint64(self.seed % 2**64), self.std)
        self._initialize_slots(rows)

    def initialize_absent(self, num_fields: int, *, zeros: bool) -> None:
        """Write rows 0 to F - 1, which the ids of each field read that have no row.

        Args:
            num_fields: F.
            zeros: whether to write zeros in place of first values like those of an id.
        """
        rows = np.arange(num_fields, dtype=np.int32)
        std, seed = 0.0 if zeros else self.std, np.uint64((self.seed + ABSENT_SEED) % 2**64)
        _write_normal(self.w, rows, rows, np.zeros(num_fields, np.int64), seed, std)
        self._initialize_slots(rows)

    def _initialize_slots(self, rows: Array) -> None:
        for slot in self.slots.values():
            slot[rows] = self.start

    def used(self, rows: int) -> dict[str, Array]:
        """The first `rows` rows of each array, by its name, as views."""
        return {name: x[:rows] for name, x in {"w": self.w, **self.slots}.items()}


@compiled
def _write_normal(
    w: Array, rows: Array, fields: Array, ids: Array, seed: np.uint64, std: float
) -> None:
    """Box and Muller's normal numbers, in float64: two of two uniform ones."""
    d = w.shape[1]
    if std == 0.0:
        for i in range(len(rows)):
            w[rows[i]] = np.float32(0.0)
        return
    for i in range(len(rows)):
        state = seeded_hash(seed, fields[i], ids[i])
        for j in range(0, d, 2):
            state += GOLDEN
            radius = std * math.sqrt(-2.0 * math.log(uniform(mix(state))))
            state += GOLDEN
            angle = 2.0 * math.pi * uniform(mix(state))
            w[rows[i], j] = np.float32(radius * math.cos(angle))
            if j + 1 < d:
                w[rows[i], j + 1] = np.float32(radius * math.sin(angle))
