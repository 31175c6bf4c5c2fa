"""Where the work of `prepare` runs: threads of this process, a Dask cluster, or GPUs."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.dask_client import connect

if TYPE_CHECKING:
    from distributed import Worker


Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_THREADS = 8
"""More would not be faster by much, and each thread has a partition in memory."""


def cpu_threads() -> int:
    """Return the number of threads to use: one per core of this process, but at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, _MOST_THREADS)


class Threads(ThreadPoolExecutor):
    """Threads that work on partitions while the caller reads the next ones.

    The caller waits if the threads are behind, so the number of partitions in memory is bounded. At
    the end of a `with` block, calls that wait are canceled.

    Args:
        count: number of threads.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._count = count
        self._started: deque[Future[Any]] = deque()

    def __exit__(self, *_: object) -> None:
        """Wait for the calls that run; cancel those that wait."""
        self.shutdown(cancel_futures=True)

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
            ahead.append(self.submit(function, item))
            if len(ahead) > self._count:
                yield ahead.popleft().result()
        for result in ahead:
            yield result.result()

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function on a thread; wait first if as many calls as threads are not done."""
        while len(self._started) >= self._count:
            self._started.popleft().result()
        self._started.append(self.submit(function, *arguments))

    def finish(self) -> None:
        """Wait for all calls that were started."""
        while self._started:
            self._started.popleft().result()


_DASHBOARD = "127.0.0.1:8787"  # Dask's own choice is this port of all networks


def use_gpu(device: str) -> bool:
    """Return whether to prepare on a GPU."""
    if device == "cpu":
        return False
    missing = "no GPU is found"
    if compat.gpu_count():
        missing = None if find_spec("cudf") else "cuDF is not installed (RAPIDS line)"
    if missing and device == "gpu":
        raise InputError(f"`device` gpu: {missing}; use `device` cpu, or a machine with a GPU")
    return not missing


def _clear_worker_cache(dask_worker: Worker) -> None:
    getattr(dask_worker, "worker_cache", {}).pop("cats", None)


@contextmanager
def dask_cluster(scheduler: str | None, *, gpu: bool) -> Iterator[None]:
    """Run the block with Dask on the given scheduler or the GPUs; with neither, without Dask.

    NVTabular's caches are cleared first: they may hold vocabularies of an earlier folder of this
    name. A process that has not imported Merlin has none, and no client of a cluster.
    """
    with ExitStack() as stack:
        if scheduler is not None:
            compat.nvtabular()
            stack.enter_context(connect(scheduler))
        elif gpu:
            from dask_cuda import LocalCUDACluster
            from distributed import Client

            compat.nvtabular()
            workers = stack.enter_context(LocalCUDACluster(dashboard_address=_DASHBOARD))
            stack.enter_context(Client(workers))
        if "merlin.io" in sys.modules:
            from merlin.core.utils import global_dask_client
            from merlin.io.worker import clean_worker_cache

            if client := global_dask_client():
                client.run(_clear_worker_cache)
            else:
                with suppress(KeyError):  # the cache is still empty
                    clean_worker_cache("cats")
        yield
