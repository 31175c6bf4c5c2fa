"""CUDA's run-time compiler, where CuPy finds it."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path


def load_nvrtc() -> list[str]:
    """Load the compiler of NVIDIA's Python package `nvidia-cuda-nvrtc-cu12`, if that is there.

    CuPy 13 asks the system for it by name. A machine that has a driver, and TensorFlow's CUDA
    from packages, does not know it; once it is loaded, its name is enough.

    Returns:
        The files that were loaded.
    """
    try:
        found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:  # nothing of NVIDIA's
        return []
    folders = found.submodule_search_locations if found else None
    files = [str(f) for x in folders or () for f in sorted(Path(x, "lib").glob("libnvrtc.so.*"))]
    for file in files:
        ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    return files
