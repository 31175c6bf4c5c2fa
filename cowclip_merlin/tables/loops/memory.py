"""Memory for large arrays that are read at random places."""

from __future__ import annotations

import math
import mmap

import numpy as np

from cowclip_merlin.types import Array, DType

_LARGE = 4 << 20  # bytes; below that an array fits the caches


def zeros(shape: int | tuple[int, ...], dtype: DType) -> Array:
    """Zeros, which take memory when they are written, in pages of 2 MB where Linux has them.

    With pages of 4 kB the processor would look up the address of almost every access.

    >>> zeros((2, 3), np.int32).tolist()
    [[0, 0, 0], [0, 0, 0]]
    """
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, dtype)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without large pages, or no memory, which NumPy says better
        return np.zeros(shape, dtype)
    return np.frombuffer(memory, dtype).reshape(shape)
