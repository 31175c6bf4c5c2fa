"""Use large memory pages for large tables, so that the processor finds random rows faster."""

from __future__ import annotations

import ctypes
import mmap
import sys

from cowclip_merlin.types import Array

HUGE = 2 << 20
LEAST = 32 << 20
"""Smallest size of an array in bytes for which the request pays off; it takes seconds, once."""

_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1, which Python's mmap does not name yet


def hold_in_large_pages(*arrays: Array) -> list[Array]:
    """Ask Linux to move these arrays to pages of 2 MB; their values do not change.

    This is only a request. Other systems, kernels before 6.1 and a full memory ignore it
    silently. A page of 4 kB contains about a hundred rows. A large table has a million of these
    pages, but the processor caches the addresses of only a few thousand.

    Args:
        *arrays: contiguous NumPy arrays.

    Returns:
        An empty list, as `on_host` needs a list.

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
