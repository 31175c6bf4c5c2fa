"""Count how many values of a column differ in all rows of a log, in little memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.types import Array
from cowclip_merlin.workflows.parallel import Threads
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.readers import read_rows

HASHES = 1 << 22
"""Hashes of a column to keep; of more values only a share is counted."""
_BLOCK = 1 << 23


def count_values(
    files: Sequence[FilePath], names: Sequence[str], log_format: LogFormat
) -> dict[str, tuple[int, int]]:
    """Return how many values of each column differ in all files, and how many there are.

    More than `HASHES` are counted to three digits.
    """
    from pandas.util import hash_array

    found = {name: _Counter() for name in names}
    only = log_format.only(*names)
    with Threads(1) as threads:
        for file in files:
            for rows in read_rows(file, only, _BLOCK, threads):
                for name, counter in found.items():
                    known = rows.table[name].drop_null().to_numpy()
                    counter.add(hash_array(known, categorize=False))
    return {name: (each.values, each.rows) for name, each in found.items()}


@dataclass
class _Counter:
    """Counts different hashes; of many, those that begin with `zeros` zero bits.

    Attributes:
        rows: hashes so far.
        zeros: bits.
        known: different hashes that begin so, sorted, uint64.
        new: further ones, unsorted.
    """

    rows: int = 0
    zeros: int = 0
    known: Array = field(default_factory=lambda: np.empty(0, np.uint64))
    new: list[Array] = field(default_factory=list)

    def add(self, hashes: Array) -> None:
        self.rows += len(hashes)
        self.new.append(self._counted(hashes))
        if sum(map(len, self.new)) > HASHES:
            self._sort()

    @property
    def values(self) -> int:
        """How many hashes differ."""
        self._sort()
        found = len(self.known) << self.zeros
        return int(float(f"{found:.3g}")) if self.zeros else found

    def _sort(self) -> None:
        self.known, self.new = np.unique(np.concatenate([self.known, *self.new])), []
        while len(self.known) > HASHES:
            self.zeros += 1
            self.known = self._counted(self.known)

    def _counted(self, hashes: Array) -> Array:
        return hashes[hashes >> np.uint64(64 - self.zeros) == 0] if self.zeros else hashes
