"""The messages that the clock refused, as ranges: a wrong clock may refuse millions of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cowclip_merlin.types import Array

Range = tuple[int, int]
"""First and last number of refused messages: the first numbers of the positions after them.

Messages in between that are no events may belong to it; events do not."""


class RefusedMessages:
    """Collects refused messages, in the order of the log.

    >>> refused = RefusedMessages()
    >>> refused.add(np.array([1, 2, 3, 4]), np.array([True, True, False, True]), np.arange(4) == 2)
    >>> refused.add(np.array([5]), np.array([True]), np.array([False]))
    >>> refused.take(until=4), refused.take(until=9)
    ([(1, 2), (4, 4)], [(5, 5)])
    """

    def __init__(self) -> None:
        self._ends = array("q")  # first and last of each range
        self._goes_on = False  # whether the newest message that counts was refused

    def add(
        self, numbers: Array, refused: npt.NDArray[np.bool_], events: npt.NDArray[np.bool_]
    ) -> None:
        """Note which of the next messages were refused.

        Args:
            numbers: of the messages, ascending, int64 [n].
            refused: by the clock, bool [n].
            events: those that are events, bool [n]; no range goes past one of them.
        """
        counts = refused | events
        numbers, refused = numbers[counts], refused[counts]
        if not len(numbers):
            return
        goes_on = self._goes_on and bool(self._ends)
        steps = np.diff(np.concatenate([[goes_on], refused, [False]]).astype(np.int8))
        firsts, lasts = numbers[steps[:-1] > 0].tolist(), numbers[steps[1:] < 0].tolist()
        if goes_on and refused[0]:
            self._ends[-1] = lasts.pop(0)
        self._ends.extend(each for ends in zip(firsts, lasts, strict=True) for each in ends)
        self._goes_on = bool(refused[-1])

    def take(self, until: int) -> list[Range]:
        """Return the ranges up to a number, and forget them."""
        ranges = list(zip(self._ends[::2], self._ends[1::2], strict=True))
        taken = [(first, min(last, until)) for first, last in ranges if first <= until]
        left = [(max(first, until + 1), last) for first, last in ranges if last > until]
        self._ends = array("q", [each for ends in left for each in ends])
        return taken


def are_in(ranges: Sequence[Range], numbers: Array) -> npt.NDArray[np.bool_]:
    """Return which numbers of messages are in ascending ranges, bool [n].

    >>> are_in([(1, 2), (5, 5)], np.array([0, 1, 2, 3, 5, 6])).tolist()
    [False, True, True, False, True, False]
    """
    if not ranges:
        return np.zeros(len(numbers), bool)
    firsts, lasts = np.array(ranges, np.int64).T
    place = np.searchsorted(firsts, numbers, side="right") - 1
    return (place >= 0) & (numbers <= lasts[place])
