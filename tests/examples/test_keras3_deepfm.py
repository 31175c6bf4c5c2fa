"""examples/keras3_deepfm.py: it trains on a prepared folder, in a process that has Keras 3."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/keras3_deepfm.py"


def keras_version():
    try:
        return version("keras")
    except PackageNotFoundError:
        return "0"


pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(keras_version() < "3", reason="this line has no Keras 3"),
]


def run(*words):
    words = [sys.executable, EXAMPLE, *map(str, words)]
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    return subprocess.run(words, capture_output=True, text=True, env=environment)


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
    }
    for words, line in told.items():
        done = run(*words)
        assert done.returncode == 2
        assert line in done.stderr.strip().splitlines()[-1]
