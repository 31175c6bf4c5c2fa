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
