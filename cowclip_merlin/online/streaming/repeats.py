"""Drop events that were seen before, by their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.tables.field_rules import FieldRules
from cowclip_merlin.tables.growing_table import GrowingTable

Array = npt.NDArray[Any]

CAPACITY = 1 << 26
"""Keys to reserve address space for; memory is taken by keys in use."""


class RepeatFilter:
    """Knows the keys of the events of the last seconds.

    Args:
        window: seconds of event time for which a key is known after its event.
        capacity: keys that can be known; then the oldest are forgotten.

    Attributes:
        dropped: repeats so far.

    >>> known = RepeatFilter(window=60, capacity=100)
    >>> known.new(np.array([5, 6, 5]), times=np.array([0, 0, 1])).tolist()
    [True, True, False]
    >>> known.new(np.array([6, 7]), times=np.array([9, 9])).tolist()
    [False, True]
    """

    def __init__(self, window: int, capacity: int = CAPACITY) -> None:
        # A table of one field whose rows hold nothing is a set of keys that expire.
        self._keys = GrowingTable(
            [FieldRules(ttl=window)], memory=[], capacity=capacity, index_cells=1 << 16
        )
        self.dropped = 0

    def new(self, keys: Array, times: Array) -> npt.NDArray[np.bool_]:
        """Remember keys; return which of them were not known before, bool [n].

        Args:
            keys: int64 [n].
            times: event times in whole seconds, int64 [n].
        """
        known = self._keys.lookup(keys[:, None])[:, 0] != 0
        first = np.zeros(len(keys), bool)
        first[np.unique(keys, return_index=True)[1]] = True
        self._keys.admit(keys[:, None], times)
        self._keys.expire()
        new = first & ~known
        self.dropped += len(keys) - np.count_nonzero(new)
        return new

    def __len__(self) -> int:
        """Number of keys that are known."""
        return self._keys.num_rows

    def state(self) -> dict[str, Array]:
        """What `restore` needs, by name; most are views."""
        return self._keys.state() | {"dropped": np.array(self.dropped)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over a state; this filter must be new."""
        self._keys.restore({k: x for k, x in state.items() if k != "dropped"})
        self.dropped = int(state["dropped"])
