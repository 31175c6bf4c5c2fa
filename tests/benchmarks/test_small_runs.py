"""One small run of each benchmark: what it prints, its JSON, and what it refuses on the way."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tiers import thorough

from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics import roc_auc
from cowclip_merlin.workflows import PrepareSettings, prepare

ROOT = Path(__file__).parents[2]
TRITON_PYTHON, CURRENT_PYTHON, OTHERS_PYTHON = (
    os.environ.get(f"{name}_PYTHON") for name in ("TRITON", "CURRENT", "OTHERS")
)
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


def check_peers(result):
    rows = {row["contestant"]: row for row in result["results"]}
    assert rows["bare-mlp"]["ratio_to_bare_mlp"] == 1 and rows["bare-mlp"]["auc"] is None
    ours = [row for name, row in rows.items() if name.startswith("cowclip")]
    assert len(ours) > 1 and all(r["rows_per_second"] > 0 and 0 < r["auc"] < 1 for r in ours)


RUNS = {
    "peers": (
        f"--rows=600 --ids=400 --batches=64 --rounds=1 {WORK}",
        [f"not run: give --python {x}=PATH" for x in ("deepctr", "fuxictr", "authors")],
    ),
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
    "command", [QUICK, *(thorough(x) for x in RUNS if x not in (QUICK, *PROCESSES))]
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


def log_of(folder, rows=500, **more):
    """A prepared log in which a user, an item and a number tell the label."""
    draw = np.random.default_rng(1)
    user, item = draw.integers(0, 20, rows), draw.integers(0, 9, rows)
    age = draw.normal(size=rows)
    y = (draw.normal(size=20)[user] * draw.normal(size=9)[item] + age > 0).astype(int)
    file = folder / "log.csv"
    pd.DataFrame({"y": y, "user": user, "item": item, "age": age}).to_csv(file, index=False)
    columns = {"label": "y", "categorical": ("user", "item"), "continuous": ("age",)} | more
    return prepare(PrepareSettings(kind="table", files=(file,), out=folder / "log", **columns))


@pytest.mark.runs
@pytest.mark.thorough
def test_defaults_of_ours(measured, tmp_path):
    data = log_of(tmp_path, 200)
    given = ("--data", data.path, "--work", tmp_path / "work")
    result, text = measured("defaults", "--contestants cowclip --seeds 1", *given)
    (row,) = result["results"]
    scores = pd.read_parquet(tmp_path / "work/cowclip-1.parquet")
    assert row["auc"] == round(roc_auc(scores["label"], scores["probability"]), 5)
    assert f"{100 * row['auc']:.2f}" in text and row["auc"] > 0.6
    assert result["log"] == "log" and result["rows"] == data.rows


@pytest.mark.system
def test_defaults_that_fail_and_lists_are_told_in_one_line(refused, tmp_path):
    given = ("--data", log_of(tmp_path).path, "--work", tmp_path / "work")
    words = (*given, "--contestants", "fuxictr", "--python", sys.executable)
    assert refused("defaults", *words)[1].startswith("error: fuxictr failed: ModuleNotFoundError")
    (tmp_path / "lists").mkdir()
    lists = log_of(tmp_path / "lists", categorical=("user",), multi=("item",)).path
    told = refused("defaults", "--data", lists, "--contestants", "cowclip")[1]
    assert "prepare it without them" in told


@pytest.mark.system
@pytest.mark.skipif(not OTHERS_PYTHON, reason="OTHERS_PYTHON is not set: benchmarks/defaults.py")
def test_defaults_of_every_other_package(measured, load, tmp_path):
    names = ",".join(load("contestants.with_defaults").CONTESTANTS)
    given = ("--data", log_of(tmp_path, 3000).path, "--work", tmp_path / "work")
    options = f"--contestants {names} --seeds 1"
    result, text = measured("defaults", options, *given, "--python", OTHERS_PYTHON)
    for row in result["results"]:
        assert row["auc"] > 0.6 and row["contestant"] in text, row
    assert {"lightgbm", "scikit-learn", "vowpalwabbit", "fuxictr"} <= result["versions"].keys()


@pytest.mark.system
def test_a_peer_that_fails_is_told(load, tmp_path):
    peers = load("peers")
    settings = peers.PeerSettings(
        work=tmp_path, rows=600, ids=400, batches=(64,), rounds=1,
        contestants=("deepctr",), python=(f"deepctr={sys.executable}",),
    )  # fmt: skip
    (row,) = peers.compare(settings)["results"]
    assert row["status"].startswith("failed: ModuleNotFoundError")


@pytest.mark.system
def test_peers_of_hugectr(load, tmp_path, monkeypatch):
    """With a stand-in as the environment's `hugectr`, which checks every call."""
    peers = load("peers")
    (tmp_path / "mpi4py.py").write_text("MPI = None\n")
    (tmp_path / "hugectr.py").write_text(
        f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\n"
        "import hugectr_fake\nsys.modules['hugectr'] = hugectr_fake\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    settings = peers.PeerSettings(
        work=tmp_path / "work", rows=600, ids=400, batches=(64,), rounds=1, mlp=(8,),
        contestants=("hugectr", "hugectr-global"), python=(f"hugectr={sys.executable}",),
    )  # fmt: skip
    result = peers.compare(settings)
    log = load("contestants.rows").generate(rows=600, held_out=60, ids=400, seed=peers.SEED)
    auc = round(roc_auc(log.test.label, log.test.continuous[:, 0]), 5)
    for row, name in zip(result["results"], settings.contestants, strict=True):
        assert row["contestant"] == name and row["rows_per_second"] > 0, row
        assert (row["auc"], row["versions"]) == (auc, {"hugectr": "24.6.0"})
    assert "hugectr-global" in peers.text(result)
