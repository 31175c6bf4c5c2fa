"""Time operations on ids."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from cowclip_merlin.types import JsonObject

Result = JsonObject


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and CPU seconds."""
    clock, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - cpu


def speed(what: str, size: int, n: int, run: Callable[[], object]) -> Result:
    """Millions of ids a second of one measurement."""
    seconds, cpu = timed(run)
    rates = {"ids_per_second": round(n / seconds), "ids_per_cpu_second": round(n / cpu)}
    return {"what": what, "ids": size, "n": n} | rates


def in_batches(call: Callable[[np.ndarray], object], ids: np.ndarray, batch: int) -> None:
    """Call with a batch of events at a time."""
    for first in range(0, len(ids), batch):
        call(ids[first : first + batch])
