"""Time one kernel or copy on a backend."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.backends import Backend

LEAST_SECONDS, MOST_CALLS = 0.02, 20  # in one round


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

    what: dict[str, Any]
    bytes: int
    steps: int
    prepare: Callable[[], Any]
    run: Callable[[], Any]


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
