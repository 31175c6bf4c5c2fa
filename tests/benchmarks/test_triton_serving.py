"""The check of Triton: what it refuses, and the whole of it where TRITON_PYTHON is set.

`make triton-check` makes the environment, in `.venv-triton`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cowclip_merlin.errors import InputError

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("TRITON_PYTHON")


@pytest.mark.system
def test_without_the_environment_it_says_how_to_make_it(refused):
    code, told = refused("serving triton", "--triton-python", sys.executable)
    assert code == 2 and "nvidia-pytriton is not installed; make triton-check makes" in told


def test_wrong_answers_are_errors(load):
    module = load("serving_parts.triton")
    good = {"largest_difference": 1e-7, "refusals": {"wrong": "a line"}}
    module.check(good)
    for change, error in (
        ({"largest_difference": 2e-6}, "an answer differs by 2.0e-06"),
        ({"largest_difference": float("nan")}, "an answer differs by nan"),
        ({"refusals": {"wrong": ""}}, "wrong: is not refused"),
        ({"refusals": {"wrong": "one\ntwo"}}, "wrong: is not refused"),
    ):
        with pytest.raises(InputError, match=error):
            module.check(good | change)


@pytest.mark.system
@pytest.mark.skipif(not PYTHON, reason="TRITON_PYTHON is not set: make triton-check")
def test_a_small_load(tmp_path):
    file = tmp_path / "triton.json"
    options = ["--rows", "3000", "--checked-rows", "200", "--batches", "1,50", "--seconds", "1"]
    done = subprocess.run(
        [sys.executable, "benchmarks/serving.py", "triton", *options, "--connections", "4",
         "--triton-python", PYTHON, "--json", str(file)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert result["largest_difference"] <= 1e-6 and result["checked_rows"] == 200
    assert [(case["batch"], case["connections"]) for case in result["cases"]] == [
        (1, 1), (50, 1), (1, 4)
    ]  # fmt: skip
    assert all(case["requests"] > 0 for case in result["cases"])
    assert result["versions"]["tritonserver"] == "2.51.0"
