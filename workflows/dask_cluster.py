"""Choose where NVTabular's tasks run: in this process, on a Dask cluster or on GPUs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.dask_client import connect

if TYPE_CHECKING:
    from distributed import Worker

_DASHBOARD = "127.0.0.1:8787"  # Dask's own choice is this port of all networks


def use_gpu(device: str) -> bool:
    """Return whether to prepare on a GPU.

    Args:
        device: "auto", "cpu" or "gpu".

    Raises:
        InputError: if `device` is "gpu" and no GPU is found or cuDF is not installed.
    """
    if device == "cpu":
        return False
    missing = _missing_for_gpu()
    if missing and device == "gpu":
        raise InputError(f"`device` gpu: {missing}; use `device` cpu, or a machine with a GPU")
    return not missing


def _missing_for_gpu() -> str | None:
    from importlib.util import find_spec

    if compat.gpu_count() == 0:
        return "no GPU is found"
    return None if find_spec("cudf") else "cuDF is not installed (RAPIDS line)"


def clear_category_cache() -> None:
    """Clear NVTabular's cache, so that every worker reads `categories/` again.

    A process that has not imported Merlin has none, and no client of a cluster.
    """
    if "merlin.io" not in sys.modules:
        return
    from merlin.core.utils import global_dask_client
    from merlin.io.worker import clean_worker_cache

    client = global_dask_client()
    if client:
        client.run(_clear_worker_cache)
    else:
        with suppress(KeyError):  # the cache is still empty
            clean_worker_cache("cats")


def _clear_worker_cache(dask_worker: Worker) -> None:
    getattr(dask_worker, "worker_cache", {}).pop("cats", None)


@contextmanager
def dask_cluster(scheduler: str | None, *, gpu: bool) -> Iterator[None]:
    """Run the block with Dask on the given scheduler or the GPUs; with neither, without Dask.

    Args:
        scheduler: address of a running scheduler, like "tcp://10.0.0.5:8786".
        gpu: start one worker per GPU.

    Raises:
        InputError: if no scheduler answers at the address.
    """
    if scheduler is not None:
        compat.nvtabular()  # whose cache on the workers `clear_category_cache` clears
        with connect(scheduler):
            yield
    elif gpu:
        from dask_cuda import LocalCUDACluster
        from distributed import Client

        compat.nvtabular()
        with LocalCUDACluster(dashboard_address=_DASHBOARD) as workers, Client(workers):
            yield
    else:
        yield
