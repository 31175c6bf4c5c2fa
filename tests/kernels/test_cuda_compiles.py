"""The CUDA source compiles for every tile; this needs nvcc and no GPU."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cowclip_merlin.kernels.cuda.source import FOLDER, TILES, options, program, tile_of


def find_nvcc():
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    there = shutil.which("nvcc") or (home and shutil.which(str(Path(home) / "bin/nvcc")))
    return there or None


NVCC = find_nvcc()
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(NVCC is None, reason="no nvcc on PATH or in CUDA_HOME"),
]
FILES = ("group", "replay", "read", "step", "dense", "arrays", "mlp")
SOURCE = program(*FILES)
FLUSHED = "-ftz=true"  # as CuPy adds it
LENGTHS = {1: 1, 2: 2, 4: 3, 8: 8, 16: 10, 32: 128}


def test_all_files_are_compiled():
    assert {file.stem for file in FOLDER.glob("*.cuh")} == {"common", *FILES}


@pytest.mark.one_case
@pytest.mark.parametrize("architecture", ["compute_80", "compute_90"])
@pytest.mark.parametrize("tile", TILES)
def test_compiles_for_every_tile(tmp_path, tile, architecture):
    file = tmp_path / "kernels.cu"
    file.write_text(SOURCE)
    for bfloat16 in (False, True):
        flags = options(LENGTHS[tile], tile, bfloat16=bfloat16)
        flags += (FLUSHED, "-o", str(tmp_path / "kernels.ptx"), str(file))
        command = [NVCC, "-ptx", f"-arch={architecture}", "-Werror=all-warnings", *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        ptx = (tmp_path / "kernels.ptx").read_text()
        for name in (
            "sum_rows",
            "sum_pieces",
            "join_pieces",
            "clip_rows",
            "take_behind",
            "step_rows",
            "adagrad_rows",
            "histogram",
            "onesweep",
            "heads",
            "step_groups",
            "adagrad_groups",
            "catch_up_rows",
            "sweep_rows",
            "fetch_rows",
            "read_batch",
            "step_weights",
            "relu_gradient",
        ):
            assert f".entry {name}(" in ptx
        assert "cvt.rn.bf16x2.f32" in ptx.split(".entry relu_gradient")[1].split(".entry ")[0]
        replay = ptx.split(".entry replay_rows")[1].split(".entry ")[0]
        assert "fma.rn.ftz.f32" not in replay
        assert "sqrt.rn.ftz.f32" in replay and "div.rn.ftz.f32" in replay
        missed = ptx.split(".entry sweep_rows")[1].split(".entry ")[0]
        for name in ("fma.rn.ftz.f32", "sqrt.approx.ftz.f32", "div.approx.ftz.f32"):
            assert name in missed


@pytest.mark.parametrize("d", [10, 128])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_no_kernel_needs_more_registers_than_full_warps_leave(tmp_path, architecture, d):
    """65,536 registers for 2 blocks of 256 threads or more: 128 each; and none in memory."""
    file = tmp_path / "kernels.cu"
    file.write_text(SOURCE)
    flags = *options(d, tile_of(d)), FLUSHED, "-cubin", f"-arch={architecture}", "-Xptxas", "-v"
    command = [NVCC, *flags, "-o", str(tmp_path / "kernels.cubin"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    registers = per_kernel(done.stderr, "(\\d+) registers")
    assert len(registers) == SOURCE.count("__global__ void") and max(registers.values()) <= 128
    shared = per_kernel(done.stderr, "(\\d+) bytes smem")
    assert max(shared.values()) <= 48 * 1024  # the most without asking for more
    # Four blocks of 256 threads at once, so that some read while others sort or wait.
    for name in ("histogram", "onesweep", "heads"):
        assert registers[name] <= 64 and 4 * (shared[name] + 1024) <= 160 * 1024
    # A stack frame would hold a copy of the tables that a kernel is given by value.
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill)", done.stderr)) == {"0"}


def per_kernel(lines, number):
    """What the assembler says of each kernel that has such a number."""
    found = re.findall(rf"entry function '(\w+)'(?:(?!entry function).)*? {number}", lines, re.S)
    return {name: int(value) for name, value in found}
