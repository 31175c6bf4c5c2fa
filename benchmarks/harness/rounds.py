"""Measure all cases in each round, so that a slow minute affects every case."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def in_turn(
    cases: Mapping[Key, Callable[[], Value]],
    rounds: int,
    *,
    warm_up: int = 0,
    progress: bool = False,
) -> dict[Key, list[Value]]:
    """Call every case once in each round.

    Args:
        cases: name -> function to call.
        rounds: number of values for each case.
        warm_up: number of earlier rounds, whose values are dropped.
        progress: whether to show a progress bar on a terminal.

    >>> numbers = iter(range(9))
    >>> in_turn({"a": lambda: next(numbers), "b": lambda: next(numbers)}, 2, warm_up=1)
    {'a': [2, 4], 'b': [3, 5]}
    """
    values: dict[Key, list[Value]] = {key: [] for key in cases}
    turns = [(number, key) for number in range(warm_up + rounds) for key in cases]
    for number, key in _with_progress(turns) if progress else turns:
        value = cases[key]()
        if number >= warm_up:
            values[key].append(value)
    return values


def _with_progress(turns: Sequence[tuple[int, Key]]) -> Iterable[tuple[int, Key]]:
    from tqdm import tqdm

    return tqdm(turns, desc="turns", disable=None, leave=False)


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the ratio of two cases in every round.

    >>> ratios([2.0, 9.0], [1.0, 3.0])
    [2.0, 3.0]
    """
    return [value / other for value, other in zip(values, others, strict=True)]
