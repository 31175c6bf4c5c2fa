"""The benchmark of the row kernels on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


def run(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_a_small_bench_of_the_kernels(tmp_path):
    file = tmp_path / "kernels.json"
    code, out, err = run(
        sys.executable, "benchmarks/kernels.py", "--backend", "numba", "--batches", "64", "128",
        "--gaps", "1", "10", "--vocabulary", "2000", "--rounds", "2", "--copy-mb", "4",
        "--json", str(file),
    )  # fmt: skip
    assert code == 0, err
    result = json.loads(file.read_text())
    names = [r["kernel"] for r in result["results"]]
    assert names == ["copy", *["group", "unique", "clip", "update", "replay", "replay"] * 2]
    assert result["command"].startswith("python benchmarks/kernels.py --backend numba")
    assert result["load_before"] >= 0 and result["hardware"]["cores"]
    assert result["versions"]["numba"] and result["date"]
    by_name = {r["kernel"]: r for r in result["results"][:6]}
    n, u = by_name["update"]["n"], by_name["update"]["u"]
    assert n == 26 * 64 and by_name["update"]["bytes"] == 44 * n + 248 * u
    assert result["results"][0]["share_of_copy"] == 1.0
    assert out.count("update") == 2


def test_the_bench_needs_no_tensorflow():
    code, _, err = run(
        sys.executable, "-c",
        "import runpy, sys; sys.path.insert(0, 'benchmarks');"
        " sys.argv = ['kernels.py', '--batches', '8', '--gaps', '1',"
        " '--vocabulary', '200', '--rounds', '1', '--copy-mb', '1', '--backend', 'numba'];"
        "runpy.run_path('benchmarks/kernels.py', run_name='__main__');"
        "assert 'tensorflow' not in sys.modules",
    )  # fmt: skip
    assert code == 0, err
