"""One small run of each benchmark: what it prints, its JSON, and what it refuses on the way."""

import json
import os
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin.errors import InputError

ROOT = Path(__file__).parents[2]
TRITON_PYTHON = os.environ.get("TRITON_PYTHON")
CURRENT_PYTHON = os.environ.get("CURRENT_PYTHON")
OPTIMIZERS = "keras2-exact,keras2-adam"
PATHS = {}  # options that a record has without their folder
if CURRENT_PYTHON:
    OPTIMIZERS += ",torch-exact,torch-adam-fused,torch-sparse-adam,keras3-exact,keras3-adam"
    PATHS["optimizers"] = ("--python", f"torch={CURRENT_PYTHON},keras3={CURRENT_PYTHON}")
WORK = "--work WORK"


def check_outages(result):
    every = [*result["skip"].values(), *result["backlog"].values()]
    assert all(0 < each["auc"] < 100 for each in every)
    assert result["backlog"]["4"]["auc"] != result["backlog"]["4, not scaled"]["auc"]


def check_days(result):
    (run,) = result["runs"]
    assert run["each day"][0] == run["all days"][0], "the first day is the same training"
    assert run["each day"][1] != run["all days"][1]


def check_workers(result):
    for r in result["results"]:
        assert r["ms_per_step"] > 0 and (r["mb_per_step"] > 0) == (r["workers"] > 1)


def check_vocabulary(result):
    assert all(0 < r["least"] <= r["median"] <= r["most"] for r in result["results"])
    smallest = [r for r in result["results"] if r["vocabulary"] == 2000]
    assert len(smallest) == 8 and all(r["ratio"] == 1 for r in smallest)
    assert b"exact and its flush" in Path("a.svg").read_bytes()
    assert result["backends"].keys() == {"dense", "exact", "lazy"}


def check_growing(result):
    fixed, growing = result["results"]
    found = [b / a for a, b in zip(fixed["rounds"], growing["rounds"], strict=True)]
    assert growing["ratio"] == pytest.approx(np.median(found)) and fixed["ratio"] == 1


def check_diagnostics(result):
    for r in result["results"]:
        costs = [probe / turn for probe, turn in zip(r["probes"], r["turns"], strict=True)]
        assert r["median"] == pytest.approx(np.median(costs)) and len(costs) == 2
        assert r["ms_per_step"] == pytest.approx(1e3 * np.median(r["turns"]) / 3)


def check_optimizers(result):
    for row in result["results"]:
        assert row["ms"] > 0 and row["cpu_ms"] == pytest.approx(np.mean(row["turns"]["cpu_ms"]))


RUNS = {
    "days": ("--rows 1500 --days 3 --seeds 1 --batch-size 64", ["| 2 |", "| 3 |"]),
    "outages": (
        "--rows 2000 --seeds 1 --snapshot-hours 12 --catch-up 4 --batch-size 64 --rule sde",
        ["| none |", "| 12 h |", "| 4 |", "| 4, not scaled |", "| not trained |"],
    ),
    "prepare": (
        f"--rows 2000 --runs 1 --without polars {WORK}",
        ["| 2,000 | prepare |", "| 2,000 | pandas |", "| yes |"],
    ),
    "workers": (
        f"--rows 2000 --batch-sizes 500 --workers 1,2 --epochs 2 {WORK}",
        ["| 500 | mirrored | 1 |", "| 500 | sharded | 2 |"],
    ),
    "optimizers": (
        "--ids 2600 --rounds 2 --steps 2 --contestants " + OPTIMIZERS,
        ["| keras2-exact |", "| keras2-adam |", "2,600 ids: ms"],
    ),
    "step vocabulary": (
        "--vocabularies 2000,4000 --batch-sizes 32,64 --mlp 8 --rounds 1 --steps 2 --warm-up 3 "
        "--missed 12 --figure a.svg",
        ["| 32 | dense | 2,000 |", "| 64 | lazy | 4,000 |", "| 64 | flush | 4,000 |"],
    ),
    "step growing": (
        "--batch-sizes 32 --known 2600 --mlp 8 --rounds 2 --steps 2",
        ["| 32 | fixed |", "| 32 | growing |"],
    ),
    "step diagnostics": (
        "--batch-sizes 32,64 --mlp 8 --vocabulary 2000 --every 3 --rounds 2",
        ["| 32 |", "| 64 |"],
    ),
}


QUICK = "step growing"
PROCESSES = ("prepare", "workers", "optimizers")


@pytest.mark.runs
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.thorough] * (command != QUICK))
        for command in RUNS
        if command not in PROCESSES
    ],
)
def test_a_small_run(command, measured, tmp_path, monkeypatch):
    run_small(command, measured, tmp_path, monkeypatch)


@pytest.mark.system
@pytest.mark.thorough
@pytest.mark.parametrize("command", PROCESSES)
def test_a_small_run_of_processes(command, measured, tmp_path, monkeypatch):
    run_small(command, measured, tmp_path, monkeypatch)


def run_small(command, measured, tmp_path, monkeypatch):
    options, words = RUNS[command]
    monkeypatch.chdir(tmp_path)
    result, out = measured(command, options, *PATHS.get(command, ()))
    for word in words:
        assert word in out
    if check := globals().get(f"check_{command.split()[-1]}"):
        check(result)


def test_optimizers_whose_environment_is_not_there_are_refused(refused):
    for words, line in {
        (): "no environment for torch; add torch=PATH",
        ("--python", "tensorflow=python"): "give NAME=PATH, with a NAME of torch, fbgemm",
        ("--python", "torch=none"): "--python torch none: no such program",
    }.items():
        code, told = refused("optimizers", *words)
        assert code == 2 and line in told


@pytest.mark.runs
@pytest.mark.thorough
def test_batches_above_the_rows_are_refused(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = f"--rows 2000 --workers 1 --epochs 2 --batch-sizes 1999 {WORK}"
    code, told = refused("workers", *small.split())
    assert code == 2 and "--batch-sizes 1999" in told and "training rows" in told


def test_the_text_of_latencies_says_whether_the_goal_is_met(load):
    seconds = {name: {"p50": 0.1, "p95": 0.2} for name in ("join", "train", "push", "apply")}
    for p95, given_up, words in (
        (0.7, 1, "| 19 | 1 |"), (0.7, 1, "| 0.70 | yes |"), (0.71, 0, "| 0.71 | no |"),
        (0.7, 2, "| 0.70 | no |"),
    ):  # fmt: skip
        latency = {"probes": 19, "given_up": given_up}
        latency |= {"seconds": seconds | {"total": {"p50": 0.3, "p95": p95}}}
        requests = {"p50": 0.001, "p99": 0.02}
        each = {"sync_every": 0.2, "latency": latency, "requests": requests}
        assert words in load("online").text({"results": [each]})


def test_outages_on_the_page(load):
    page = (ROOT / "docs/online-results.md").read_text()
    recorded = {}
    for file in (ROOT / "benchmarks/results").glob("*-outages*.json"):
        rule = file.stem.partition("-outages-")[2] or "cowclip"
        recorded[rule] = json.loads(file.read_text())
        assert file.name in page
    skip, _ = load("outages").text(recorded["cowclip"]).split("\n\n")
    assert skip in page

    def difference(rule, name):
        found = recorded[rule]["backlog"][name]
        return f"{found['difference']:+.2f} ±{found['spread']:.2f}"

    for k in ("8", "16", "32"):
        cells = [difference(rule, k) for rule in ("invariant", "sde", "cowclip")]
        cells.append(difference("invariant", f"{k}, not scaled"))
        seconds = f"{recorded['invariant']['backlog'][k]['seconds']:.1f}"
        assert f"| {seconds} | {' | '.join(cells)} |\n" in page
    cells = [difference(rule, "not trained") for rule in ("invariant", "sde", "cowclip")]
    assert f"{' | '.join(cells)} | |\n" in page


def test_what_ends_the_syncs_of_a_load_is_not_hidden(load):
    called = threading.Event()

    def fail():
        called.set()
        raise OSError("the disk is full")

    repeated = load("serving_load").repeated
    with pytest.raises(OSError, match="disk is full"), repeated(fail, lambda: 0.0):
        assert called.wait(60)
    with pytest.raises(ZeroDivisionError), repeated(fail, lambda: 60.0):
        raise ZeroDivisionError


def test_prepared_rows_that_only_one_program_has_are_no_same_output(load, tmp_path):
    same = load("prepare").same
    for name, rows in {"a": [1.0, 2.0], "b": [1.0], "c": [1.0, np.nan], "d": [1.0, 2.1]}.items():
        for split in ("train", "test"):
            (tmp_path / name / split).mkdir(parents=True)
            pd.DataFrame({"x": rows}).to_parquet(tmp_path / name / split / "part.parquet")
    assert [same(tmp_path / "a", tmp_path / other) for other in "abcd"] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.system
def test_serving_needs_wrk_or_triton(refused, monkeypatch):
    code, told = refused("serving triton", "--triton-python", sys.executable)
    assert code == 2 and "nvidia-pytriton is not installed; make triton-check makes" in told
    monkeypatch.setattr(shutil, "which", lambda _: None)
    code, told = refused("serving load")
    assert code == 2 and "wrk is not installed; install it" in told


@pytest.mark.system
@pytest.mark.skipif(shutil.which("wrk") is None, reason="no wrk on this machine")
def test_serving_load(measured):
    small = "--seconds 1 --events 3000 --sync-rows 500 --sync-every 0.2 --max-requests 10"
    result, _ = measured("serving load", small)
    assert result["wrong_answers"] == 0 and result["checked_answers"] > 10
    *within, above = result["cases"]
    assert all(case["answered"] > 0 and case["refused"] == 0 for case in within)
    assert above["connections"] == 30 and above["refused"] > 0 and above["answered"] > 0
    assert all((case["syncs"] > 0) == case["synced"] for case in result["cases"])
    status = result["status"]
    assert 0 < status["sync"]["rows"] == result["rows"] == status["model"]["rows"]


def test_wrong_answers_of_triton_are_errors(load):
    check = load("serving_triton").check
    good = {"largest_difference": 1e-7, "refusals": {"wrong": "a line"}}
    check(None, good)
    for change, error in (
        ({"largest_difference": 2e-6}, "an answer differs by 2.0e-06"),
        ({"largest_difference": float("nan")}, "an answer differs by nan"),
        ({"refusals": {"wrong": ""}}, "wrong: is not refused"),
        ({"refusals": {"wrong": "one\ntwo"}}, "wrong: is not refused"),
    ):
        with pytest.raises(InputError, match=error):
            check(None, good | change)


@pytest.mark.system
@pytest.mark.skipif(not TRITON_PYTHON, reason="TRITON_PYTHON is not set: make triton-check")
def test_triton(measured):
    small = "--rows 3000 --checked-rows 200 --batches 1,50 --seconds 1 --connections 4"
    result, _ = measured("serving triton", small, "--triton-python", TRITON_PYTHON)
    assert result["largest_difference"] <= 1e-6 and result["checked_rows"] == 200
    cases = [(case["batch"], case["connections"]) for case in result["cases"]]
    assert cases == [(1, 1), (50, 1), (1, 4)]
    assert result["versions"]["tritonserver"] == "2.51.0"
