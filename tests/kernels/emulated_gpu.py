"""A GPU for a process that has none: the CUDA driver, cuBLASLt, and CuPy with emulated kernels.

Unlike `emulated_cupy.operation_kernels`, whose tables are "host", the operations take the way that
they take on a GPU: through the driver, on a stream.
"""

import atexit
import ctypes
import shutil
import subprocess
import sys
import tempfile
import time
import types
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from emulated_cublas import Fake
from emulated_cupy import COMPILER, HERE, compile_source


def install():
    """Let `import cupy`, libcuda.so.1 and libcublasLt.so.12 be found, all emulated."""
    if COMPILER is None:
        sys.exit("an emulated GPU needs g++ on PATH")
    folder = Path(tempfile.mkdtemp(prefix="emulated_gpu."))
    atexit.register(shutil.rmtree, folder)
    driver = folder / "driver.so"
    # The loader finds a library by this name, if it is there already.
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    source = str(HERE / "fake_driver.cpp")
    subprocess.run([COMPILER, *flags, source, "-o", str(driver)], check=True)
    library = ctypes.CDLL(str(driver))
    library.fake_stream.restype = ctypes.c_void_p
    stream = library.fake_stream()
    Fake(folder, soname="libcublasLt.so.12").library.fake_use_stream(ctypes.c_void_p(stream))
    sys.modules["cupy"] = _cupy(folder, stream)


class DeviceArray(np.ndarray):
    """An array that gives its address as CuPy's do."""

    @property
    def __cuda_array_interface__(self):
        return self.__array_interface__


class _Stream:
    def __init__(self, pointer):
        self.ptr = pointer

    def use(self):
        pass

    def synchronize(self):
        pass

    def begin_capture(self):
        raise NotImplementedError("graphs are not emulated")


class _Event:
    def record(self, stream):
        self.time = time.perf_counter()

    def synchronize(self):
        pass


class _Module:
    def __init__(self, library):
        self.library = library

    def get_function(self, name):
        address = ctypes.cast(getattr(self.library, f"launch_{name}"), ctypes.c_void_p).value
        return types.SimpleNamespace(kernel=types.SimpleNamespace(ptr=address))


def _cupy(folder, stream):
    fake = types.ModuleType("cupy")
    fake.__version__ = "emulated"
    for name in ("asarray", "ascontiguousarray", "empty", "zeros"):
        setattr(fake, name, _on_device(getattr(np, name)))
    fake.asnumpy = np.array  # a copy, as from a GPU
    fake.RawModule = lambda *, code, options: _Module(compile_source(code, options, folder))
    device = nullcontext(types.SimpleNamespace(attributes={"MultiProcessorCount": 1}))
    fake.cuda = types.SimpleNamespace(
        Stream=lambda non_blocking: _Stream(stream),
        Event=_Event,
        get_elapsed_time=lambda begin, end: 1000 * (end.time - begin.time),
        Device=lambda number: device,
        runtime=types.SimpleNamespace(getDeviceProperties=lambda i: {"name": b"emulated GPU"}),
    )
    return fake


def _on_device(function):
    def call(*args, **kwargs):
        return function(*args, **kwargs).view(DeviceArray)

    return call
