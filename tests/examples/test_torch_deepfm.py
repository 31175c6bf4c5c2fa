"""examples/torch_deepfm.py: it trains on a prepared folder, without TensorFlow and pandas.

`make current-examples` makes the environment and sets CURRENT_PYTHON.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("CURRENT_PYTHON")
EXAMPLE = Path(__file__).parents[2] / "examples/torch_deepfm.py"
WITHOUT = """
import runpy, sys
sys.modules |= dict.fromkeys(["tensorflow", "pandas", "nvtabular", "pyarrow"])
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not PYTHON, reason="CURRENT_PYTHON is not set: make current-examples"),
]


def run(*words):
    words = [PYTHON, "-c", WITHOUT, EXAMPLE, *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True)


def test_it_trains(data):
    done = run(data, "--batch-size", 64, "--epochs", 3)
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"train loss ([\d.]+)", done.stdout)]
    aucs = [float(x) for x in re.findall(r"test AUC ([\d.]+)", done.stdout)]
    assert len(aucs) == 3 and losses[2] < losses[1] < losses[0] and aucs[2] > 0.55


def test_what_it_does_not_read_is_one_line(prepared, tmp_path):
    lists = prepared("y,a,b,x\n" + "0,1,2|3,1\n1,2,3,2\n" * 20, multi=("b",), categorical=("a",))
    told = {
        (tmp_path / "none",): "no such folder",
        (lists.path,): "prepare the log without",
        (lists.path, "--epochs", 0): "--epochs 0: give 1 or more",
        (lists.path, "--batch-size", 0): "batch size is 0",
    }
    for words, line in told.items():
        done = run(*words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and line in done.stderr


def test_a_folder_that_was_not_read_before_needs_pyarrow(prepared):
    rows = prepared("y,a,b,x\n" + "0,1,2,1\n1,2,3,2\n" * 20)
    done = run(rows.path)
    assert done.returncode == 2 and "pip install pyarrow" in done.stderr
