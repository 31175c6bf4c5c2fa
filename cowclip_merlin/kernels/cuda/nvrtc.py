"""Find CUDA's libraries in NVIDIA's Python packages, and load its runtime compiler (NVRTC)."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path


def packaged_files(component: str, pattern: str) -> list[str]:
    """Return the libraries of NVIDIA's Python packages with such a name, CUDA 12's first.

    Those of CUDA 11 and 12 have a folder for each component, such as `nvidia/cublas/lib`. Those of
    later versions share `nvidia/cu13/lib` and so on.
    """
    package = importlib.util.find_spec("nvidia")
    roots = [Path(x) for x in (package and package.submodule_search_locations) or ()]
    folders = f"{component}/lib", "cu[1-9][0-9]/lib"
    found = [sorted(root.glob(f"{each}/{pattern}")) for each in folders for root in roots]
    return [str(file) for files in found for file in files]


def load_nvrtc() -> list[str]:
    """Load the compiler of NVIDIA's Python packages `nvidia-cuda-nvrtc...`, if one is installed.

    CuPy loads the library by name from the system. A machine with only a driver and CUDA from
    Python packages cannot find it. Once it is loaded, its name is enough.

    Returns:
        The loaded files.
    """
    # The compiler opens the other file by its name, too. CUDA 13's does not look beside itself.
    names = "libnvrtc-builtins.so.*", "libnvrtc.so.*"
    files = [file for name in names for file in packaged_files("cuda_nvrtc", name)]
    for file in files:
        ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    return files
