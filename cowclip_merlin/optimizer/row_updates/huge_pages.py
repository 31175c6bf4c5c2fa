"""Large pages for large tables: rows at random places are then found without a walk for each."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

HUGE = 2 << 20
LEAST = 32 << 20
"""Bytes of an array from which on it is worth the seconds that it takes, once."""

_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1, which Python's mmap does not name yet


def hold_in_large_pages(*arrays: Any) -> list[Any]:
    """Ask Linux to hold these arrays in pages of 2 MB, now; their contents stay.

    This is only a request. Other systems, kernels before 6.1 and a full memory ignore it
    silently. A page of 4 kB holds a hundred rows of a table; where there are a million of such
    pages, the processor remembers the places of a few thousand.

    Args:
        *arrays: NumPy arrays, contiguous.

    Returns:
        Nothing, as a list.

    >>> import numpy as np
    >>> hold_in_large_pages(np.zeros(1000))
    []
    """
    if not sys.platform.startswith("linux"):
        return []
    madvise = ctypes.CDLL(None).madvise
    for x in arrays:
        start, end = -(-x.ctypes.data // HUGE) * HUGE, (x.ctypes.data + x.nbytes) // HUGE * HUGE
        if x.nbytes >= LEAST and start < end:
            for advice in (mmap.MADV_HUGEPAGE, _COLLAPSE):
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)
    return []
