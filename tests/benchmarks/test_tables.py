"""The benchmark of growing tables, small."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cowclip_merlin.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.mark.system
def test_a_small_benchmark(tmp_path):
    file = tmp_path / "tables.json"
    done = subprocess.run(
        [
            sys.executable,
            "benchmarks/tables.py",
            "--sizes",
            "3000",
            "--lookups",
            "1000",
            "--stream",
            "60000",
            "--snapshot-rows",
            "500",
            "--batch",
            "512",
            "--json",
            str(file),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = {r["what"]: r for r in json.loads(file.read_text())["results"]}
    assert list(results) == [
        "reserved", "insert", "lookup", "zipf", "absent", "admit", "refuse", "dense insert",
        "dense lookup", "slice", "stream", "snapshot",
    ]  # fmt: skip
    assert all(r["ids_per_second"] > 0 for r in results.values() if "ids_per_second" in r)
    stream = results["stream"]
    assert 6000 <= stream["most_rows"] <= stream["bound"] == 6000 + 1200 + 5120
    assert "| lookup | 3,000 |" in done.stdout


def test_an_interpreter_that_is_not_there_is_named(load, capsys):
    with pytest.raises(SystemExit) as stopped:
        load("tables").BENCHMARK.main(["--tfra-python", "no/such/python"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: --tfra-python no/such/python: no such program\n"


@pytest.mark.system
def test_a_failed_process_is_one_line(load):
    peers = load("growing_tables.peers")
    ids = np.zeros((1, 26), np.int64)  # this interpreter lacks the package
    with pytest.raises(InputError, match=r"--tfra-python failed: .*recommenders_addons"):
        peers.tfra_speeds(sys.executable, 1, batch=1, ids=ids, known=ids, zipf=ids)
