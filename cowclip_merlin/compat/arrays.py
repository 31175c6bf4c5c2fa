"""Handle the differences between versions of NumPy."""

from __future__ import annotations

from cowclip_merlin.compat.keras import version_of


def numpy_memory_can_be_shared(version: str) -> bool:
    """Return whether this version of NumPy may share memory with TensorFlow by DLPack.

    TensorFlow frees tensors without Python's global lock. NumPy acquires the lock from version
    1.24 on (numpy/numpy#22510). With older versions, as in NVIDIA's image, Python aborts.

    >>> numpy_memory_can_be_shared("1.22.4"), numpy_memory_can_be_shared("2.0.0")
    (False, True)
    """
    return version_of(version) >= (1, 24)
