"""Measure the memory of a process."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def resident_megabytes(process: int | None = None) -> float:
    """Return the memory that a process has now, in MB of 10^6 bytes.

    Without Linux's /proc, that of this process is the largest so far.

    Args:
        process: its id; None for this process.

    Raises:
        OSError: there is no such process.

    >>> 1 < resident_megabytes() <= peak_megabytes() + 1
    True
    """
    name = "self" if process is None else str(process)
    try:
        pages = int(Path(f"/proc/{name}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        if process is not None:
            raise
        return peak_megabytes()
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def peak_megabytes() -> float:
    """Return the most memory that this process had so far, in MB of 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def bytes_left() -> int | None:
    """Return how many bytes this process may still take; None without Linux's /proc.

    The limits of `ulimit -v` and `ulimit -d` count, and the free memory of the machine.

    >>> bytes_left() is None or bytes_left() > 0
    True
    """
    try:
        own, machine = _kilobytes("/proc/self/status"), _kilobytes("/proc/meminfo")
    except OSError:
        return None
    left = [1024 * (machine["MemAvailable"] + machine.get("SwapFree", 0))]
    limits = ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData"))
    for limit, used in limits:
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            left.append(max(0, soft - 1024 * own[used]))
    return min(left)


def _kilobytes(file: str) -> dict[str, int]:
    """Return the lines of a file of /proc that are numbers of kB, by name."""
    words = [line.split() for line in Path(file).read_text(encoding="ascii").splitlines()]
    return {w[0].rstrip(":"): int(w[1]) for w in words if len(w) == 3 and w[2] == "kB"}
