"""Dry runs of the check on a GPU, and what it says where it finds no GPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cowclip_merlin.settings import settings_from

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


def run(*command, **environment):
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | environment
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on PATH")
def test_a_dry_run_of_the_gpu_check_runs_nothing(tmp_path):
    results = tmp_path / "results"
    code, out, err = run(
        "make", "--no-print-directory", "gpu-check", "PYTHON=no-such-python",
        DRY_RUN="1", RESULTS=str(results),
    )  # fmt: skip
    assert code == 0, err
    commands = [line for line in out.splitlines() if line.startswith("+ ")]
    assert all(line.startswith("+ no-such-python ") for line in commands)
    assert all("benchmarks/gpu_operations.py --parts" in line for line in commands[:2])
    assert all("--backend cupy --update exact" in line for line in commands[2:4])
    assert "cowclip_merlin.demo --work" in commands[4]
    assert commands[5].split()[2] == "benchmarks/peers.py"
    assert "tests/kernels" in commands[7]
    assert "hugectr" not in out  # that needs HUGECTR_PYTHON
    assert str(results) in commands[-1] and not results.exists()


@pytest.fixture
def checked(tmp_path):
    """Exit code, output and log of a check in which Python is a stand-in; its calls, by script.

    Every command ends well except those of pytest.
    """
    stub, calls, results = tmp_path / "python", tmp_path / "calls", tmp_path / "results"
    stub.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -c ]; then echo "NVIDIA H200 NVL"; exit 0; fi\n'
        f"""(printf '%s\\t' "$@"; echo) >> {calls}\n"""
        'echo "ran $*"; [ "$2" != pytest ]\n'
    )
    stub.chmod(0o755)
    code, out, _ = run(
        "benchmarks/gpu_check.sh", PYTHON=str(stub), RESULTS=str(results),
        HUGECTR_PYTHON=sys.executable,
    )  # fmt: skip
    lines = [line.split("\t")[:-1] for line in calls.read_text().splitlines()]
    return code, out, results, lines


def assert_goes_on_after_a_failure_and_keeps_a_log(code, out, results):
    (log,) = results.iterdir()
    assert code == 1 and log.name.endswith("-nvidia-h200-nvl-check.log")
    assert log.read_text() in out
    assert log.read_text().count("FAILED: ") == 1  # that of pytest
    assert "ran -m cowclip_merlin bench" in out


def test_the_gpu_check_asks_for_what_can_be_measured(benchmark_of, checked, monkeypatch):
    """Every option that it gives is one of the command's own, with a value that it takes."""
    from cowclip_merlin.cli import main

    names = ("step vocabulary", "gpu_operations", "workers", "peers")
    # Before anything that they import is replaced.
    benchmarks = {name: benchmark_of(name) for name in names}
    *ended, lines = checked
    assert_goes_on_after_a_failure_and_keeps_a_log(*ended)
    made = []
    monkeypatch.setattr(
        "cowclip_merlin.bench.throughput.measure", lambda s: made.append(s) or {"results": []}
    )
    monkeypatch.setattr("cowclip_merlin.training.build.choose_device", lambda device: "gpu")
    benches = [line[2:] for line in lines if line[:2] == ["-m", "cowclip_merlin"]]
    assert len(benches) == 4 and not any("auto" in line for line in benches)
    for line in benches:
        main(line[: line.index("--json")])  # ends at the empty result
    assert [s.vocabulary for s in made] == [33_800_000, 1_000_000, 33_800_000, 1_000_000]
    assert [s.jit_compile for s in made] == [False, False, True, False]
    assert made[3].backends == ("cupy", "tensorflow")
    assert made[0].precisions == ("float32", "bfloat16")
    for name, benchmark in benchmarks.items():
        script, *part = name.split()
        words = [f"benchmarks/{script}.py", *part]
        given = [line[len(words) :] for line in lines if line[: len(words)] == words]
        assert len(given) == {"peers": 2, "gpu_operations": 2}.get(name, 1)
        for line in given:
            settings = settings_from(benchmark.parser().parse_args(line), benchmark.settings)
    assert settings.runs_hugectr and not any(map(settings.missing, settings.contestants))


def test_the_gpu_check_stops_without_a_gpu(tmp_path):
    results = tmp_path / "results"
    code, _, err = run("benchmarks/gpu_check.sh", PYTHON="false", RESULTS=str(results))
    assert code == 3 and err.startswith("no GPU to check") and not results.exists()


def test_without_row_operations_only_those_without_tensorflow_are_checked(tmp_path):
    """With TensorFlow's operations instead, the rest would measure another code."""
    stub, results = tmp_path / "python", tmp_path / "results"
    stub.write_text(
        "#!/bin/sh\n"
        'case "$2" in *gpu_ops*) echo "install g++" >&2; exit 1;; esac\n'
        'case "$1" in -c) echo NVIDIA H200;; *) echo "ran $*";; esac\n'
    )
    stub.chmod(0o755)
    code, out, _ = run("benchmarks/gpu_check.sh", PYTHON=str(stub), RESULTS=str(results))
    assert code == 3 and out.count("ran benchmarks/gpu_operations.py") == out.count("ran ") == 2
    assert "install g++\ntraining would update rows by TensorFlow's slower" in out


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")
def test_the_operations_without_tensorflow_are_right_on_an_emulated_gpu(tmp_path):
    """The C++ runs as on a GPU, by the driver on a stream; NumPy has the right results.

    No other package is on the path.
    """
    file, packages = tmp_path / "emulated.json", tmp_path / "packages"
    packages.mkdir()
    for name in ("numpy", "numpy.libs"):
        (packages / name).symlink_to(Path(np.__file__).parents[1] / name)
    words = ("-S", "benchmarks/gpu_operations.py", "--emulate", "--json", str(file))
    code, out, err = run(sys.executable, *words, PYTHONPATH=str(packages))
    assert code == 0, out + err
    found = json.loads(file.read_text())
    assert len(found["checks"]) >= 40 and not found["wrong"] and "checks are right" in out
    assert [len(found[part]) for part in ("steps", "epochs")] == [6, 2]
    assert all(each["steps"] > 0 for each in found["epochs"])
