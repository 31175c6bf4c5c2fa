"""As much of CuPy as the row kernels use, on NumPy arrays and the emulated kernels.

The host code of `cowclip_merlin.kernels.cupy` runs on it unchanged. A kernel's arguments must have
the very types of its parameters: CUDA itself would take anything for them.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
# All of these are in CuPy 13 with the same meaning; whatever else NumPy has stays hidden.
NAMES = (
    "arange",
    "array", "ascontiguousarray", "concatenate", "cumsum", "diff", "empty", "flatnonzero", "full",
    "maximum", "minimum", "ones", "sqrt", "stack", "where", "zeros",
)  # fmt: skip


def compile_source(source, options, folder):
    """A shared library of the kernels, compiled unless it is in the folder."""
    names = re.findall(r"__global__ void (\w+)", source)
    text = "\n".join(['#include "emulation.h"', source, *(f"EMULATE({name})" for name in names)])
    macros = [option for option in options if option.startswith("-D")]
    stem = hashlib.sha256("\n".join([*macros, text]).encode()).hexdigest()[:16]
    library = folder / f"{stem}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:  # another worker may compile it, too
            compile_file(text, macros, Path(work, "a.so"))
            os.replace(Path(work, "a.so"), library)
    loaded = LIBRARIES[str(library)] = ctypes.CDLL(str(library))
    loaded.emulate_with(SEED[0])
    return loaded


LIBRARIES, SEED = {}, [0]
M_PERTURB = -6  # of mallopt: the byte that fills new memory, inverted, and freed memory


@contextlib.contextmanager
def another_order(seed):
    """Run threads and blocks in a random order, on memory that is full of nonsense."""
    libc = ctypes.CDLL(None)
    try:
        _use_seed(seed)
        libc.mallopt(M_PERTURB, 0xAB)
        yield
    finally:
        libc.mallopt(M_PERTURB, 0)
        _use_seed(0)


def _use_seed(seed):
    SEED[0] = seed
    for library in LIBRARIES.values():
        library.emulate_with(seed)


def launches(kernel):
    """How often a kernel has been launched, by all libraries."""
    name = f"launches_of_{kernel}"
    libraries = [x for x in LIBRARIES.values() if hasattr(x, name)]  # not all have all kernels
    return sum(ctypes.c_long.in_dll(x, name).value for x in libraries)


def compile_file(text, macros, library):
    file = library.with_suffix(".cpp")
    file.write_text(text)
    # No -ffast-math, no contraction: a float operation rounds as on the GPU.
    # A jump to another stack is what _FORTIFY_SOURCE looks for.
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-Wno-unknown-pragmas", "-shared", "-fPIC",
             "-U_FORTIFY_SOURCE"]  # fmt: skip
    command = [COMPILER, *flags, *macros, "-I", str(HERE), str(file), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class EmulatedModule:
    """Stands for `cupy.RawModule`."""

    def __init__(self, library):
        self.library = library

    def get_function(self, name):
        launch = getattr(self.library, f"launch_{name}")
        letters = getattr(self.library, f"letters_{name}")
        letters.restype = ctypes.c_char_p
        return functools.partial(call, launch, letters().decode())


def call(launch, letters, grid, block, args):
    """Launch a kernel; arrays and NumPy scalars as CuPy passes them."""
    assert [letter(arg) for arg in args] == list(letters), "arguments do not fit the parameters"
    boxes = [pointer(arg) for arg in args]
    addresses = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
    launch(ctypes.c_uint(grid[0]), ctypes.c_uint(block[0]), addresses)


def letter(arg):
    """The dtype as emulation.h writes it."""
    assert isinstance(arg, (np.ndarray, np.generic)), f"{arg!r} has no type of its own"
    found = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "uint16": "h"}
    kind = found[arg.dtype.name]
    return kind.upper() if isinstance(arg, np.ndarray) else kind


def pointer(arg):
    """What the driver would be handed: an address, or the scalar's own bytes."""
    if isinstance(arg, np.ndarray):
        assert arg.flags.c_contiguous
        return ctypes.c_void_p(arg.ctypes.data)
    return ctypes.create_string_buffer(arg.tobytes(), arg.nbytes)


def fake_cupy(folder):
    """A module to be imported as `cupy`."""
    fake = types.ModuleType("cupy")
    for name in NAMES:
        setattr(fake, name, getattr(np, name))
    fake.argsort = functools.partial(np.argsort, kind="stable")
    fake.RawModule = lambda *, code, options: EmulatedModule(compile_source(code, options, folder))
    return fake


def operation_kernels(folder):
    """Stands for `gpu_ops.load_kernels`; libraries are in a folder."""
    from cowclip_merlin.kernels.cuda.source import program
    from cowclip_merlin.optimizer.row_updates import gpu_ops

    def load(device, d, bfloat16):
        source = program(*gpu_ops.SOURCES)
        library = compile_source(source, gpu_ops.program_options(d, bfloat16), folder)
        found = [getattr(library, f"launch_{name}") for name in gpu_ops.FUNCTIONS]
        addresses = tuple(ctypes.cast(each, ctypes.c_void_p).value for each in found)
        return gpu_ops.Loaded(addresses, blocks=2, host=True)

    return load


def load_kernels(folder, tile=None):
    """The host code, with `fake_cupy` for CuPy and its libraries in a folder.

    Args:
        folder: where to put what is compiled.
        tile: lanes per row; by default what the host chooses.
    """
    path = HERE.parents[1] / "cowclip_merlin/kernels/cupy.py"
    spec = importlib.util.spec_from_file_location("emulated_cupy_kernels", path)
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get("cupy")
    sys.modules["cupy"] = fake_cupy(folder)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["cupy"]
        if before is not None:
            sys.modules["cupy"] = before
    if tile is not None:
        module.tile_of = lambda d: tile
    return module
