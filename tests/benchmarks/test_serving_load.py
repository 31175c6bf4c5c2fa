"""The load test of a server, small."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


def test_without_wrk_it_says_so(load, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SystemExit) as stopped:
        load("serving_load").BENCHMARK.main([])
    assert stopped.value.code == 2
    assert "wrk is not installed; install it" in capsys.readouterr().err


def test_a_small_load(tmp_path):
    if shutil.which("wrk") is None:
        pytest.skip("no wrk on this machine")
    file = tmp_path / "load.json"
    options = ["--seconds", "1", "--events", "3000", "--sync-rows", "500", "--sync-every", "0.2"]
    done = subprocess.run(
        [sys.executable, "benchmarks/serving_load.py", *options, "--max-requests", "10",
         "--json", str(file)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert result["wrong_answers"] == 0 and result["checked_answers"] > 10
    *within, above = result["cases"]
    assert all(case["answered"] > 0 and case["refused"] == 0 for case in within)
    assert above["connections"] == 30 and above["refused"] > 0 and above["answered"] > 0
    assert [case["syncs"] > 0 for case in result["cases"]] == [
        case["synced"] for case in result["cases"]
    ]
    assert (
        0 < result["status"]["sync"]["rows"] == result["rows"] == result["status"]["model"]["rows"]
    )
