"""Time a kernel or copy, on the CPU and on the GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit, prange

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.machine import processor
from cowclip_merlin.types import Array, JsonObject

LEAST_SECONDS, MOST_CALLS = 0.02, 20  # in one round


@njit(parallel=True)
def parallel_copy(source: Array, target: Array) -> None:
    """Copy with all threads."""
    for i in prange(len(source)):
        target[i] = source[i]


class NumbaBackend:
    """The CPU."""

    name = "numba"
    to_device = staticmethod(np.array)
    copy = staticmethod(parallel_copy)

    def seconds(self, run: Callable[[], object]) -> float:
        """Measure the time of one call."""
        started = time.perf_counter()
        run()
        return time.perf_counter() - started

    def hardware(self) -> JsonObject:
        """Describe the processor and its cores."""
        return processor()


class CupyBackend:
    """The GPU."""

    name = "cupy"

    def __init__(self) -> None:
        import cupy

        self.cupy, self.to_device = cupy, cupy.asarray

    def copy(self, source: Array, target: Array) -> None:
        """Copy on the device."""
        self.cupy.copyto(target, source)

    def seconds(self, run: Callable[[], object]) -> float:
        """Measure one call with the GPU's clock, including its waits for the host."""
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        start.record()
        run()
        end.record()
        end.synchronize()
        return self.cupy.cuda.get_elapsed_time(start, end) / 1000

    def hardware(self) -> JsonObject:
        """Describe the processor and the GPU."""
        runtime = self.cupy.cuda.runtime
        gpu = runtime.getDeviceProperties(self.cupy.cuda.Device().id)
        return processor() | {
            "gpu": gpu["name"].decode(),
            "gpu_memory_gb": round(gpu["totalGlobalMem"] / 1e9, 1),
            "compute_capability": f"{gpu['major']}.{gpu['minor']}",
            "cuda_driver": runtime.driverGetVersion(),
            "cuda_runtime": runtime.runtimeGetVersion(),
        }


Backend = NumbaBackend | CupyBackend


def choose_backend(name: str) -> Backend:
    """Return the backend of a name; "auto" is cupy if it finds a GPU.

    Raises:
        InputError: if the name is "cupy" and CuPy is not installed or finds no GPU.
    """
    if name == "numba":
        return NumbaBackend()
    try:
        import cupy

        found = cupy.cuda.is_available()
    except ImportError:
        found = False
    if name == "cupy" and not found:
        raise InputError(
            "--backend cupy: CuPy is not installed or finds no GPU: use --backend numba"
        )
    return CupyBackend() if found else NumbaBackend()


@dataclass(frozen=True)
class KernelCase:
    """A kernel with its input.

    Attributes:
        what: kernel, batch, n, u, and the gap of a replay.
        bytes: bytes that the kernel must read and write.
        steps: number of steps of single numbers in a replay.
        prepare: prepares a call, outside the timed part.
        run: the call.
    """

    what: JsonObject
    bytes: int
    steps: int
    prepare: Callable[[], object]
    run: Callable[[], object]


def copy_case(backend: Backend, megabytes: int) -> KernelCase:
    """Return a copy, which measures the bandwidth of the device's memory."""
    source = backend.to_device(np.ones(megabytes * 250_000, np.float32))
    target = source.copy()
    size = 2 * source.nbytes
    return KernelCase(
        {"kernel": "copy"}, size, 0, lambda: None, lambda: backend.copy(source, target)
    )


def time_case(backend: Backend, case: KernelCase) -> float:
    """Return the median seconds of a few calls."""
    times: list[float] = []
    while len(times) < MOST_CALLS and sum(times) < LEAST_SECONDS:
        case.prepare()
        times.append(backend.seconds(case.run))
    return statistics.median(times)
