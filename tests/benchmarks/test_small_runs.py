"""Benchmarks whose test is one small run: what it prints and its JSON; tables on the pages."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cowclip_merlin.errors import InputError

ROOT = Path(__file__).parents[2]
WITHOUT_TENSORFLOW = """
import runpy, sys
sys.argv.pop(0)
sys.path.insert(0, "benchmarks")
runpy.run_path(sys.argv[0], run_name="__main__")
assert "tensorflow" not in sys.modules
"""


@pytest.mark.runs
@pytest.mark.thorough
def test_diagnostics(measured):
    small = "--batch-sizes 32,64 --mlp 8 --vocabulary 2000 --every 3 --rounds 2 --seconds 0"
    result, out = measured("step diagnostics", small)
    assert "| 32 |" in out and "| 64 |" in out and result["every"] == 3
    for r in result["results"]:
        assert len(r["rounds"]) == 2 and all(x["watched"] > x["probe"] > 0 for x in r["rounds"])
        assert r["least"] <= r["cost"] <= r["most"]
        assert r["cost_of_probes"] == pytest.approx(r["ms_per_probe"] / r["ms_per_step"] / 3)


@pytest.mark.system
def test_kernels_need_no_tensorflow(tmp_path):
    file = tmp_path / "kernels.json"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, "benchmarks/rows.py", "kernels",
         "--backend", "numba", "--batches", "64", "128", "--gaps", "1", "10",
         "--vocabulary", "2000", "--rounds", "2",
         "--copy-mb", "4", "--json", str(file)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    names = [r["kernel"] for r in result["results"]]
    steps = ["adam", "adagrad", "rowwise"]
    of_batch = ["group", "unique", "clip", "update", *steps, "replay", "replay"]
    assert names == ["copy", *of_batch * 2]
    assert result["command"].startswith("python benchmarks/rows.py kernels --backend numba")
    assert result["load_before"] >= 0 and result["hardware"]["cores"]
    assert result["versions"]["numba"] and result["date"]
    by_name = {r["kernel"]: r for r in result["results"][:8]}
    n, u = by_name["update"]["n"], by_name["update"]["u"]
    assert n == 26 * 64 and by_name["update"]["bytes"] == 44 * n + 248 * u
    assert [by_name[name]["bytes"] for name in steps] == [292 * u, 212 * u, 140 * u]
    assert result["results"][0]["share_of_copy"] == 1.0
    assert done.stdout.count("update") == 2


@pytest.mark.runs
@pytest.mark.thorough
def test_loading(load, measured, refused, tmp_path):
    little, work = "--rows 2000 --rounds 1 --seconds 0.01", ["--work", tmp_path / "w"]
    result, out = measured("step loading", f"{little} --batch-sizes 64", *work)
    assert [r["what"] for r in result["results"]] == list(load("step_parts.loading").LOADERS)
    assert result["results"][-1]["ratio_to_step"] == 1 and "| 64 | merlin |" in out
    assert [folder.name for folder in (tmp_path / "w").iterdir()] == ["data-2000"]
    code, told = refused("step loading", *little.split(), *work, "--batch-sizes", "1999")
    assert code == 2 and "--batch-sizes 1999" in told and "training rows" in told


@pytest.mark.system
def test_message_logs(measured, tmp_path):
    small = "--batches 1 50 --rows 64 --seconds 0.02 --round-trips 20 --rounds 2"
    result, out = measured("message_logs", small, "--logs", tmp_path / "log")
    results = result["results"]
    cases = [("messages", 1), ("messages", 50), ("sync rows", 64), ("there and back", 1)]
    assert [(r["what"], r["size"]) for r in results] == cases
    assert all(r["log"] == "files" and len(r["rounds"]) == 2 for r in results)
    speeds = [value for r in results for key, value in r.items() if "_per_second" in key]
    assert len(speeds) == 6 and min(speeds) > 0
    assert results[2]["message_bytes"] > 64 * (8 + 8 + 44)
    assert results[3]["p99_ms"] >= results[3]["median_ms"] > 0
    assert "| files | 64 |" in out
    assert [each.name for each in tmp_path.iterdir()] == ["message_logs.json"]


def test_the_text_of_latencies_says_whether_the_goal_is_met(load):
    module = load("online")
    seconds = {name: {"p50": 0.1, "p95": 0.2} for name in ("join", "train", "push", "apply")}

    def line(p95):
        total = {"total": {"p50": 0.3, "p95": p95}}
        each = {
            "sync_every": 0.2,
            "latency": {"probes": 9, "seconds": seconds | total},
            "requests": {"p50": 0.001, "p99": 0.02},
        }
        return module.text({"results": [each]}).splitlines()[-1]

    assert "| 0.70 | yes |" in line(0.7) and "| 0.71 | no |" in line(0.71)


@pytest.mark.runs
@pytest.mark.thorough
def test_outages(measured):
    small = "--rows 4000 --seeds 1 --snapshot-hours 12 --catch-up 1,4 --batch-size 64 --rule sde"
    result, out = measured("outages", small)
    assert list(result["skip"]) == ["none", "12 h"]
    assert list(result["backlog"]) == ["1", "4", "4, not scaled", "not trained"]
    every = [*result["skip"].values(), *result["backlog"].values()]
    assert all(0 < each["auc"] < 100 for each in every)
    assert result["backlog"]["4"]["auc"] != result["backlog"]["4, not scaled"]["auc"]
    assert "| not trained |" in out


@pytest.mark.runs
@pytest.mark.thorough
def test_days(measured):
    result, out = measured("days", "--rows 3000 --days 3 --seeds 1 --batch-size 64")
    (run,) = result["runs"]
    assert run["each day"][0] == run["all days"][0], "the first day is the same training"
    assert run["each day"][1] != run["all days"][1]
    assert all(0 < auc < 1 for aucs in run.values() for auc in aucs)
    assert {len(aucs) for aucs in run.values()} == {2} and "| 3 |" in out


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
def test_serving_load_needs_wrk(refused, monkeypatch):
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
    assert [case["syncs"] > 0 for case in result["cases"]] == [
        case["synced"] for case in result["cases"]
    ]
    assert (
        0 < result["status"]["sync"]["rows"] == result["rows"] == result["status"]["model"]["rows"]
    )


@pytest.mark.system
def test_tables(measured):
    small = "--sizes 3000 --lookups 1000 --stream 60000 --snapshot-rows 500 --batch 512"
    result, out = measured("rows tables", small)
    results = {r["what"]: r for r in result["results"]}
    assert list(results) == [
        "reserved", "insert", "lookup", "zipf", "absent", "admit", "refuse", "dense insert",
        "dense lookup", "slice", "stream", "snapshot",
    ]  # fmt: skip
    assert all(r["ids_per_second"] > 0 for r in results.values() if "ids_per_second" in r)
    stream = results["stream"]
    assert 6000 <= stream["most_rows"] <= stream["bound"] == 6000 + 1200 + 5120
    assert "| lookup | 3,000 |" in out


@pytest.mark.system
def test_a_failed_process_of_tables_is_one_line(load):
    peers = load("row_parts.other_tables")
    ids = np.zeros((1, 26), np.int64)  # this interpreter lacks the package
    with pytest.raises(InputError, match=r"--tfra-python failed: .*recommenders_addons"):
        peers.tfra_speeds(sys.executable, 1, batch=1, ids=ids, known=ids, zipf=ids)


def test_lists_are_timed_per_looked_up_id(measured, load, monkeypatch):
    part = load("step_parts.lists")
    seen, rows_of = [], part.random_rows

    def random_rows(*args, **options):
        seen.append(rows_of(*args, **options))
        return seen[-1]

    monkeypatch.setattr(part, "random_rows", random_rows)
    small = "--batches 16 --values 5 --updates lazy --vocabulary 2000 --rounds 2 --steps 2"
    result, out = measured("step lists", small)
    (row,) = result["results"]
    one, lists = seen
    assert one.lengths is None and lists.lengths.shape == (32, 26)
    assert one.ids.size == 160 * 26 and lists.lengths.mean() == pytest.approx(5, rel=0.1)
    assert (lists.lengths.min(), lists.lengths.max()) == (1, 9)
    found = [b / a for a, b in zip(row["times"]["one"], row["times"]["lists"], strict=True)]
    assert row["ratio"] == pytest.approx(np.median(found)) and "| lazy | 16 |" in out


@pytest.mark.runs
def test_an_epoch_has_the_time_of_its_flush_and_an_auc(measured):
    small = "--vocabularies 2000 --batch-sizes 512 --updates exact --rows 40000 --held-out 5000"
    result, out = measured("step epoch", small)
    (row,) = result["results"]
    assert (row["steps"], row["of_steps"], len(row["tenths"])) == (79, 79, 10)
    flush = 1000 * row["flush_seconds"] / 79
    assert row["ms_per_step_with_flush"] == pytest.approx(row["ms_per_step"] + flush)
    assert 0.55 < row["auc"] < row["auc_of_truth"] < 0.8 and "| exact | 79 |" in out


@pytest.mark.system
def test_versions(measured, tmp_path):
    python = tmp_path / "other" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    some = "start,produce,join,decode"
    small = f"--rows 300 --runs 1 --cases {some}"
    result, out = measured("versions", small, "--against", tmp_path / "other")
    assert ",".join(result["cases"]) == some
    for case, versions in result["cases"].items():
        assert [len(versions[who]) for who in ("this", "other")] == [1, 1]
        assert versions["this"][0]["cpu_seconds"] > 0 and f"| {case} | cpu seconds |" in out
