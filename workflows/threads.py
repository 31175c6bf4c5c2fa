"""Work on several partitions at once, on threads of this process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_THREADS = 8
"""More would not be faster by much, and each thread has a partition in memory."""


def cpu_threads() -> int:
    """Return the number of threads to use: one per core of this process, but at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, _MOST_THREADS)


class Threads:
    """Threads that work on partitions while the caller reads the next ones.

    The caller waits if the threads are behind, so the number of partitions in memory is bounded.

    Args:
        count: number of threads.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count)
        self._started: deque[Future[Any]] = deque()

    def __enter__(self) -> Threads:
        """Return the threads themselves."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the calls that run; cancel those that wait."""
        self._pool.shutdown(cancel_futures=True)

    def in_order(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """Yield `function(item)` of each item, in order; work on the next items meanwhile.

        >>> with Threads(2) as threads:
        ...     list(threads.in_order(len, ["a", "bcd", ""]))
        [1, 3, 0]
        """
        ahead: deque[Future[Result]] = deque()
        for item in items:
            ahead.append(self._pool.submit(function, item))
            if len(ahead) > self._count:
                yield ahead.popleft().result()
        for result in ahead:
            yield result.result()

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function on a thread; wait first if as many calls as threads are not done.

        Raises:
            Exception: the error of an earlier call.
        """
        while len(self._started) >= self._count:
            self._started.popleft().result()
        self._started.append(self._pool.submit(function, *arguments))

    def finish(self) -> None:
        """Wait for all calls that were started.

        Raises:
            Exception: the error of one of them.
        """
        while self._started:
            self._started.popleft().result()
