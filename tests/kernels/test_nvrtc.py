"""CUDA's compiler and cuBLASLt are found where only NVIDIA's Python packages have them."""

import subprocess
import sys

import pytest
from emulated_cupy import COMPILER

pytestmark = pytest.mark.system

CODE = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
from cowclip_merlin import kernels

def known(name):
    try:
        return bool(ctypes.CDLL(name))
    except OSError:
        return False

names = "libnvrtc.so.99", "libnvrtc-builtins.so.99.0"
assert not any(map(known, names))
try:
    kernels.load("cupy")
except ImportError:
    pass  # no CuPy here
print(*map(known, names))
"""


@pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")
@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("component", ["cuda_nvrtc", "cu13"])
def test_the_compiler_of_the_package_is_loaded(tmp_path, component, installed):
    folder = tmp_path / "nvidia" / component / "lib"
    folder.mkdir(parents=True)
    if installed:
        source = tmp_path / "empty.cpp"
        source.touch()
        for name in ("libnvrtc.so.99", "libnvrtc-builtins.so.99.0"):
            command = [COMPILER, "-shared", f"-Wl,-soname,{name}", "-o", str(folder / name)]
            subprocess.run([*command, str(source)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout == f"{installed} {installed}\n", done.stderr


OF_12, OF_13 = "cublas/lib/libcublasLt.so.12", "cu13/lib/libcublasLt.so.13"
OTHERS = ["cu13/lib/libcublas.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"]


@pytest.mark.parametrize(
    "files, expected", [([OF_12], OF_12), ([OF_13], OF_13), ([OF_12, OF_13], OF_12), ([], "")]
)
def test_the_product_library_of_any_package_is_found(tmp_path, monkeypatch, files, expected):
    from cowclip_merlin.contrib.fused_mlp import cublas_file

    for file in (*files, *OTHERS):
        (tmp_path / "nvidia" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nvidia" / file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    assert cublas_file() == (expected and str(tmp_path / "nvidia" / expected))
