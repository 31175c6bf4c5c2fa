"""Load CUDA's runtime compiler (NVRTC), so that CuPy finds it."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path


def load_nvrtc() -> list[str]:
    """Load the compiler of NVIDIA's Python package `nvidia-cuda-nvrtc-cu12`, if it is installed.

    CuPy 13 loads the library by name from the system. A machine with only a driver and CUDA from
    Python packages cannot find it. Once it is loaded, its name is enough.

    Returns:
        The loaded files.
    """
    try:
        found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:  # no NVIDIA packages
        return []
    folders = found.submodule_search_locations if found else None
    files = [str(f) for x in folders or () for f in sorted(Path(x, "lib").glob("libnvrtc.so.*"))]
    for file in files:
        ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    return files
