"""The fake of cuBLASLt, and an engine of hidden layers that runs on it and on emulated kernels."""

import contextlib
import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from emulated_cupy import COMPILER, HERE, compile_source

SOURCE = HERE / "fake_cublas.cpp"
NAMES = {1: "plain", 6: "relu", 134: "relu+mask", 152: "drelu"}
PLAIN, RELU, DRELU, MASK, WIDE_SUMS = 1, 2, 8, 128, 256
"""What `refuse` of `Fake.reset` takes: bits of epilogues without an algorithm; PLAIN: all."""


class Fake:
    """The fake library, compiled unless it is in the folder.

    With a soname, whoever opens a library of that name in this process gets the fake.
    """

    def __init__(self, folder, soname=None):
        text = SOURCE.read_text()
        self.file = folder / f"cublas-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
        if not self.file.exists():
            with tempfile.TemporaryDirectory(dir=folder) as work:
                made = Path(work, "a.so")
                # No contraction: the order of sums is the loop's, in float32.
                flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC"]
                flags += [f"-Wl,-soname,{soname}"] * (soname is not None)
                subprocess.run([COMPILER, *flags, str(SOURCE), "-o", str(made)], check=True)
                os.replace(made, self.file)
        self.library = ctypes.CDLL(str(self.file))
        self.library.fake_why.restype = ctypes.c_char_p
        self.reset()

    def reset(self, refuse=0, spoil=False):
        self.library.fake_reset(ctypes.c_uint(refuse), int(spoil))

    def products(self):
        """Epilogues of all products since `reset`, in order."""
        found = (ctypes.c_uint * 1000)()
        count = self.library.fake_products(found, len(found))
        return [NAMES[each] for each in found[:count]]

    def why(self):
        return self.library.fake_why().decode()


def loader(folder):
    """Stands for `engine.load_kernels`; libraries are in a folder."""
    from cowclip_merlin.contrib import fused_mlp as fused
    from cowclip_merlin.kernels.cuda.source import program
    from cowclip_merlin.optimizer.row_updates import gpu_ops

    def load(device):
        library = compile_source(program("mlp"), gpu_ops.program_options(1, False), folder)
        found = [getattr(library, f"launch_{name}") for name in fused.FUNCTIONS]
        addresses = tuple(ctypes.cast(each, ctypes.c_void_p).value for each in found)
        return gpu_ops.Loaded(addresses, blocks=3, host=True)

    return load


@contextlib.contextmanager
def installed(monkeypatch, folder):
    """Variables seem to be on GPU 0, whose kernels are emulated and whose cuBLASLt is the fake."""
    from cowclip_merlin.contrib import fused_mlp as fused
    from cowclip_merlin.optimizer.row_updates import gpu_ops

    fake, caches = Fake(folder), (fused.engine_for, fused._engine)
    monkeypatch.setattr(fused, "load_kernels", loader(folder))
    monkeypatch.setattr(fused, "cublas_file", lambda: str(fake.file))
    monkeypatch.setattr("cowclip_merlin.models.hidden.layers.gpu_of", lambda variable: 0)
    monkeypatch.setattr(gpu_ops, "require_cupy", lambda: None)
    for cache in caches:
        cache.cache_clear()
    yield fake
    for cache in caches:
        cache.cache_clear()
