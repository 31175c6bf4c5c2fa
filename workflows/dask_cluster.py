"""Where NVTabular's tasks run: here, on an existing Dask cluster, or on the GPUs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError


def use_gpu(device: str) -> bool:
    """Whether to prepare on a GPU.

    Args:
        device: "auto", "cpu" or "gpu".

    Raises:
        InputError: a GPU is asked for, and there is none or cuDF is missing.
    """
    if device == "cpu":
        return False
    missing = _missing_for_gpu()
    if missing and device == "gpu":
        raise InputError(f"--device gpu: {missing}; use --device cpu, or a machine with a GPU")
    return not missing


def _missing_for_gpu() -> str | None:
    from importlib.util import find_spec

    try:
        import pynvml

        pynvml.nvmlInit()
        gpus = pynvml.nvmlDeviceGetCount()
    except Exception:
        gpus = 0
    if gpus == 0:
        return "no GPU is there"
    return None if find_spec("cudf") else "cuDF is not installed (RAPIDS line)"


def clear_category_cache() -> None:
    """Make every worker read `categories/` again: NVTabular caches what it has read."""
    from merlin.core.utils import global_dask_client
    from merlin.io.worker import clean_worker_cache

    client = global_dask_client()
    if client:
        client.run(_clear_worker_cache)
    else:
        with suppress(KeyError):  # nothing was read yet
            clean_worker_cache("cats")


def _clear_worker_cache(dask_worker: Any) -> None:
    getattr(dask_worker, "worker_cache", {}).pop("cats", None)


@contextmanager
def dask_cluster(scheduler: str | None, *, gpu: bool) -> Iterator[None]:
    """Dask for the time of the block: the given scheduler, the GPUs, or threads of this process.

    Args:
        scheduler: address of a running scheduler, like "tcp://10.0.0.5:8786".
        gpu: start one worker per GPU.

    Raises:
        InputError: no scheduler answers at the address.
    """
    import dask

    compat.nvtabular()
    if scheduler is not None:
        from distributed import Client

        try:
            client = Client(scheduler, timeout="10s")
        except (OSError, ValueError) as error:
            raise InputError(
                f"--scheduler {scheduler}: no Dask scheduler answers; start one, or leave it out"
            ) from error
        with client:
            yield
    elif gpu:
        from dask_cuda import LocalCUDACluster
        from distributed import Client

        with LocalCUDACluster() as workers, Client(workers):
            yield
    else:
        from dask.diagnostics import ProgressBar

        bar = ProgressBar(dt=0.5, out=sys.stderr) if sys.stderr.isatty() else nullcontext()
        with dask.config.set(scheduler="threads"), bar:
            yield
