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


def ended(load, capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        load("triton_serving").BENCHMARK.main(list(words))
    return stopped.value.code, capsys.readouterr().err


@pytest.mark.system
def test_without_the_environment_it_says_how_to_make_it(load, capsys, tmp_path):
    code, told = ended(load, capsys, "--triton-python", str(tmp_path / "python"))
    assert code == 2 and "python: no such file; make triton-check makes" in told
    code, told = ended(load, capsys, "--triton-python", sys.executable)
    assert code == 2 and "nvidia-pytriton is not installed; make triton-check makes" in told


def test_a_batch_above_the_limit_of_the_model_is_refused(load, capsys):
    code, told = ended(load, capsys, "--batches", "1,5000")
    assert code == 2 and "--batches 5000 is larger than a batch of the model" in told


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, None),
        ({"largest_difference": 2e-6}, "an answer differs by 2.0e-06"),
        ({"largest_difference": float("nan")}, "an answer differs by nan"),
        ({"refusals": {"wrong": ""}}, "wrong: is not refused"),
        ({"refusals": {"wrong": "Traceback"}}, "wrong: is not refused"),
        ({"refusals": {"wrong": "one\ntwo"}}, "wrong: is not refused"),
    ],
)
def test_wrong_answers_are_errors(load, change, error):
    result = {"largest_difference": 1e-7, "refusals": {"wrong": "a line"}} | change
    if error is None:
        load("triton_serving").check(result)
        return
    with pytest.raises(InputError, match=error):
        load("triton_serving").check(result)


def test_checked_rows_have_missing_and_unknown_values(load, tmp_path):
    exported = load("triton_server.exported")
    rows = exported.write_rows(tmp_path / "new.txt", 200, seed=3)
    assert [list(row.values()) for row in rows] == [
        line.split("\t") for line in (tmp_path / "new.txt").read_text().split("\n")[:-1]
    ]
    cells = [value for row in rows for name, value in row.items() if name != "label"]
    assert sum(not value for value in cells) > 200
    assert sum(value.startswith("unknown") for value in cells) > 200
    assert not any(value for name, value in rows[0].items() if name != "label")


@pytest.mark.system
@pytest.mark.skipif(not PYTHON, reason="TRITON_PYTHON is not set: make triton-check")
def test_a_small_load(tmp_path):
    file = tmp_path / "triton.json"
    options = ["--rows", "3000", "--checked-rows", "200", "--batches", "1,50", "--seconds", "1"]
    done = subprocess.run(
        [sys.executable, "benchmarks/triton_serving.py", *options, "--connections", "4",
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
