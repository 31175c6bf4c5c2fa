"""Dry runs of the check on a GPU, and what it says where it finds no GPU."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert "tests/kernels" in commands[0] and "tests/optimizer" in commands[1]
    assert "tests/smoke.py" in commands[2] and "--backend cupy" in commands[3]
    step = next(line for line in commands if "--vocabulary 33800000" in line)
    assert "cowclip_merlin bench --device gpu" in step and ",131072" in step
    for name in ("step_profile", "vocabulary", "loading", "baseline"):
        assert any(f"benchmarks/{name}.py --device gpu" in line for line in commands)
    assert str(results) in commands[-1] and not results.exists()


def test_the_gpu_check_calls_what_there_is():
    """Every option that it gives is one of the command's own."""
    code, out, _ = run("benchmarks/gpu_check.sh", PYTHON=sys.executable, DRY_RUN="1")
    assert code == 0
    for line in out.splitlines():
        if line.startswith("+ ") and "pytest" not in line and "smoke" not in line:
            command = line[2:].split()
            known = run(*command[: 3 if command[1] == "-m" else 2], *_bench_of(command), "--help")
            assert known[0] == 0, known[2]
            given = [word for word in command if word.startswith("--")]
            assert [word for word in given if word not in known[1]] == []


def test_the_gpu_check_asks_for_what_can_be_measured(load, monkeypatch):
    """Every value that it gives is one that the benchmark takes."""
    from cowclip_merlin.cli import bench, build_parser

    names = ("kernels", "step_profile", "vocabulary", "loading", "baseline", "workers")
    modules = {name: load(name) for name in names}  # before anything that they import is replaced
    made = []
    monkeypatch.setattr(
        "cowclip_merlin.bench.throughput.measure", lambda s: made.append(s) or {"results": []}
    )
    monkeypatch.setattr("cowclip_merlin.training.build.choose_device", lambda device: "gpu")
    _, out, _ = run("benchmarks/gpu_check.sh", PYTHON="python", DRY_RUN="1")
    lines = [line.split()[2:] for line in out.splitlines() if line.startswith("+ ")]
    benches = [line[2:] for line in lines if line[:2] == ["-m", "cowclip_merlin"]]
    assert len(benches) == 4
    for line in benches:
        args = build_parser().parse_args([*line[: line.index("--json")]])
        with contextlib.suppress(KeyError):  # of the empty result
            bench.run(args)
    assert [s.vocabulary for s in made] == [1_000_000, 33_800_000, 33_800_000, 1_000_000]
    assert [s.jit_compile for s in made] == [False, False, False, True]
    assert made[0].backends == ["auto", "tensorflow"] and made[2].precisions == ["bfloat16"]
    for name, module in modules.items():
        given = [line[1:] for line in lines if line[0] == f"benchmarks/{name}.py"]
        assert len(given) == (5 if name == "kernels" else 1)
        for line in given:
            module.BENCHMARK.settings_from(module.BENCHMARK.parser().parse_args(line))


def test_the_gpu_check_compares_with_hugectr_if_it_has_its_python(load):
    """Quotes are not printed, so the names with a space are put together again here."""
    peers = load("peers")
    runs = (run("benchmarks/gpu_check.sh", PYTHON="python", DRY_RUN="1", HUGECTR_PYTHON=python)[1]
            for python in ("", sys.executable))  # fmt: skip
    without, given = ([line for line in out.splitlines() if "peers.py" in line] for out in runs)
    assert without == [] and len(given) == 1
    before, names, after = (
        given[0]
        .replace("+ python benchmarks/peers.py ", "")
        .partition(re.search(r"bare-mlp.*hugectr-dcn", given[0])[0])
    )
    args = peers.BENCHMARK.parser().parse_args([*before.split(), names, *after.split()])
    settings = peers.BENCHMARK.settings_from(args)
    assert {name for name, (kind, *_) in peers.PEERS.items() if kind == "hugectr"} < {
        *settings.contestants
    }
    assert settings.runs_hugectr and all(not settings.missing(n) for n in settings.contestants)


def _bench_of(command):
    return ["bench"] if command[1] == "-m" else []


def test_the_gpu_check_says_that_there_is_no_gpu(tmp_path):
    results = tmp_path / "results"
    code, _, err = run("benchmarks/gpu_check.sh", PYTHON="false", RESULTS=str(results))
    assert code == 3 and "no GPU to check" in err and not results.exists()


def test_the_gpu_check_stops_without_row_operations(tmp_path):
    """With TensorFlow's operations instead, it would measure another code."""
    stub, results = tmp_path / "python", tmp_path / "results"
    stub.write_text(
        "#!/bin/sh\n"
        'case "$2" in *gpu_ops*) echo "install g++" >&2; exit 1;; esac\n'
        "echo NVIDIA H200\n"
    )
    stub.chmod(0o755)
    code, _, err = run("benchmarks/gpu_check.sh", PYTHON=str(stub), RESULTS=str(results))
    assert code == 3 and not results.exists()
    assert err.startswith("install g++\ntraining would update rows by TensorFlow's slower")


def test_the_gpu_check_goes_on_after_a_failure_and_keeps_a_log(tmp_path):
    stub, results = tmp_path / "python", tmp_path / "results"
    stub.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -c ]; then echo "NVIDIA H200 NVL"; exit 0; fi\n'
        'echo "ran $*"; [ "$2" != pytest ]\n'
    )
    stub.chmod(0o755)
    code, out, _ = run("benchmarks/gpu_check.sh", PYTHON=str(stub), RESULTS=str(results))
    (log,) = results.iterdir()
    assert code == 1 and log.name.endswith("-nvidia-h200-nvl-check.log")
    assert log.read_text() in out
    assert log.read_text().count("FAILED: ") == 2 and "ran -m cowclip_merlin bench" in out
