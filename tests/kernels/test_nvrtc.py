"""CuPy finds CUDA's compiler also where only NVIDIA's Python package has it."""

import subprocess
import sys

import pytest
from emulated_cupy import COMPILER

pytestmark = pytest.mark.system

CODE = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
from cowclip_merlin import kernels

def known():
    try:
        return bool(ctypes.CDLL("libnvrtc.so.99"))
    except OSError:
        return False

assert not known()
try:
    kernels.load("cupy")
except kernels.InputError:
    pass  # no CuPy here
print(known())
"""


@pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")
@pytest.mark.parametrize("installed", [True, False])
def test_the_compiler_of_the_package_is_loaded(tmp_path, installed):
    folder = tmp_path / "nvidia/cuda_nvrtc/lib"
    folder.mkdir(parents=True)
    if installed:
        library, source = str(folder / "libnvrtc.so.99"), tmp_path / "empty.cpp"
        source.touch()
        command = [COMPILER, "-shared", "-Wl,-soname,libnvrtc.so.99", "-o", library, str(source)]
        subprocess.run(command, check=True)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout == f"{installed}\n", done.stderr
