"""examples/torch_deepfm.py and keras3_deepfm.py: they train on a prepared folder.

Keras 3 runs here, where a process may have it. `make current-examples` makes the environment of
PyTorch, which has neither TensorFlow nor pandas, and sets CURRENT_PYTHON.
"""

import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

PYTHON = os.environ.get("CURRENT_PYTHON")
EXAMPLES = Path(__file__).parents[2] / "examples"
WITHOUT = """
import runpy, sys
sys.modules |= dict.fromkeys(["tensorflow", "pandas", "nvtabular", "pyarrow"])
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
VERSION = next((each.version for each in distributions(name="keras")), "0")
TORCH = pytest.mark.skipif(not PYTHON, reason="CURRENT_PYTHON is not set: make current-examples")
KERAS = pytest.mark.skipif(VERSION < "3", reason="this line has no Keras 3")
pytestmark = pytest.mark.system


def run(framework, *words):
    python = [PYTHON, "-c", WITHOUT] if framework == "torch" else [sys.executable]
    words = [*python, f"{framework}_deepfm.py", *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, cwd=EXAMPLES)


of_both = pytest.mark.parametrize(
    "framework", [pytest.param("torch", marks=TORCH), pytest.param("keras3", marks=KERAS)]
)


@of_both
def test_it_trains(data, framework):
    done = run(framework, data, "--batch-size", 64, "--epochs", 3)
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"train loss ([\d.]+)", done.stdout)]
    aucs = [float(x) for x in re.findall(r"test AUC ([\d.]+)", done.stdout)]
    assert len(aucs) == 3 and losses[2] < losses[1] < losses[0] and aucs[2] > 0.55


@of_both
def test_what_it_does_not_read_is_one_line(prepared, tmp_path, framework):
    lists = prepared("y,a,b,x\n" + "0,1,2|3,1\n1,2,3,2\n" * 20, multi=("b",), categorical=("a",))
    told = {
        (tmp_path / "none",): "no such folder",
        (lists.path,): "prepare the log without",
        (lists.path, "--epochs", 0): "--epochs 0: give 1 or more",
        (lists.path, "--batch-size", 0): "batch size is 0",
    }
    for words, line in told.items():
        done = run(framework, *words)
        (error,) = [x for x in done.stderr.splitlines() if "error: " in x]
        assert done.returncode == 2 and line in error


@TORCH
def test_a_folder_that_was_not_read_before_needs_pyarrow(prepared):
    rows = prepared("y,a,b,x\n" + "0,1,2,1\n1,2,3,2\n" * 20)
    done = run("torch", rows.path)
    assert done.returncode == 2 and "pip install pyarrow" in done.stderr
