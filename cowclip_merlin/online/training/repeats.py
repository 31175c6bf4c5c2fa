"""Which events of a stream repeat an earlier one, by their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.training.settings import MOST_KEYS
from cowclip_merlin.tables.growing_table import GrowingTable
from cowclip_merlin.tables.layout import LATEST, FieldRules
from cowclip_merlin.types import Array

_BYTES_OF_KEY = 50  # in memory, about


class RepeatFilter:
    """Knows the keys of the events of the last seconds.

    Whether an event is a repeat depends on its time and on that of the event with its key before
    it, as long as there are not more than `most_keys` keys.

    Args:
        window: seconds of event time after which an event with a known key is new.
        most_keys: keys to know; beyond it the oldest are forgotten.
        warn: takes a line if keys are forgotten within the window.

    Attributes:
        dropped: repeats so far.

    >>> known = RepeatFilter(window=60, most_keys=100)
    >>> known.new(np.array([5, 6, 5]), times=np.array([0, 0, 1])).tolist()
    [True, True, False]
    >>> known.new(np.array([6, 7]), times=np.array([9, 9])).tolist()
    [False, True]
    """

    def __init__(
        self, window: int, most_keys: int, *, warn: Callable[[str], None] = lambda _: None
    ) -> None:
        # A table of one field whose rows hold nothing is a set of keys that expire.
        ttl = min(2 * window, LATEST)
        self._window, self._keys = (
            window,
            GrowingTable(
                [FieldRules(ttl=ttl)], memory=[], capacity=most_keys + 1, max_rows=most_keys
            ),
        )
        self.dropped, self._most_keys, self._warn, self._is_told = 0, most_keys, warn, False

    @property
    def reach(self) -> int:
        """Seconds of event time for which keys are known: the window, or less at the bound."""
        if not self._keys.statistics().evicted:
            return self._window
        return min(max(self._keys.clock - self._keys.evicted_until, 0), self._window)

    def new(self, keys: Array, times: Array) -> npt.NDArray[np.bool_]:
        """Remember keys; return which events are no repeats, bool [n].

        Args:
            keys: int64 [n].
            times: event times in whole seconds, int64 [n].
        """
        if len(keys) > self._most_keys:  # a table has room for a whole batch at least
            parts = (slice(i, i + self._most_keys) for i in range(0, len(keys), self._most_keys))
            return np.concatenate([self.new(keys[part], times[part]) for part in parts])
        new, times = self._look(keys, times)
        self._keys.admit(keys[:, None], times)
        self._keys.expire()
        self.dropped += len(keys) - np.count_nonzero(new)
        if not self._is_told and self.reach < self._window:
            self._is_told = True
            self._warn(self._said())
        return new

    def are_new(self, keys: Array, times: Array) -> npt.NDArray[np.bool_]:
        """Return what `new` would, and remember nothing; of more than `most_keys`, about that."""
        return self._look(keys, times)[0]

    def _look(self, keys: Array, times: Array) -> tuple[npt.NDArray[np.bool_], Array]:
        """Return which events are no repeats, and the times with which they count."""
        newest = np.maximum.accumulate(np.append(self._keys.clock, times))[1:]
        # An event that is later than the window counts as just within it. So a key is kept for
        # long enough, and it does not matter when it is dropped.
        times = np.maximum(times, newest - self._window)
        return times - self._times_before(keys, times) >= self._window, times

    def _said(self) -> str:
        """Say that the window does not hold, with what would."""
        reach = self.reach
        wanted = self._most_keys * self._window // max(reach, 1)
        return (
            f"the {self._most_keys:,} known keys reach back {reach:,} s of the "
            f"{self._window:,} s of --repeats-window: an older event that comes again is trained "
            f"again; set a window of {reach} s, or --repeats-keys {min(wanted, MOST_KEYS)} "
            f"(about {min(wanted, MOST_KEYS) * _BYTES_OF_KEY / 1e9:,.1f} GB)"
        )

    def _times_before(self, keys: Array, times: Array) -> Array:
        """Latest time of the events with the same key before each event; long ago without one."""
        rows = self._keys.lookup(keys[:, None])[:, 0]
        before = np.where(rows != 0, self._keys.last_seen(rows).astype(np.int64), -LATEST)
        ordered = np.sort(keys)
        several = ordered[1:][ordered[1:] == ordered[:-1]]
        if not len(several):
            return before
        last: dict[int, int] = {}
        for i in np.flatnonzero(np.isin(keys, several)).tolist():
            before[i] = max(before[i], last.get(int(keys[i]), -LATEST))
            last[int(keys[i])] = max(times[i], before[i])
        return before

    def __len__(self) -> int:
        """Number of keys that are known."""
        return self._keys.num_rows

    def state(self) -> dict[str, Array]:
        """What `restore` needs, by name; most are views."""
        return self._keys.state() | {"dropped": np.array(self.dropped)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over a state; this filter must be new.

        Raises:
            InputError: it has more keys than this filter may know.
        """
        if (keys := len(state["ids"]) - 1) > self._most_keys:
            raise InputError(
                f"the snapshot knows {keys:,} keys, but `repeats_keys` is {self._most_keys:,}; use "
                "at least that many"
            )
        self._keys.restore({k: x for k, x in state.items() if k != "dropped"})
        self.dropped = int(state["dropped"])
