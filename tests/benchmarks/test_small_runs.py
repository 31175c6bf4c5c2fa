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
BASELINE = "--base-batch-size 128 --multipliers 4,128 --epochs 1"
WITHOUT_TENSORFLOW = """
import runpy, sys
sys.argv.pop(0)
sys.path.insert(0, "benchmarks")
runpy.run_path(sys.argv[0], run_name="__main__")
assert "tensorflow" not in sys.modules
"""


@pytest.mark.system
def test_kernels_need_no_tensorflow(tmp_path):
    file = tmp_path / "kernels.json"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, "benchmarks/rows.py", "kernels",
         "--backend", "numba", "--batches", "64", "--gaps", "1", "--vocabulary", "2000",
         "--rounds", "1", "--copy-mb", "4", "--json", str(file)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    names = [r["kernel"] for r in result["results"]]
    steps = ["adam", "adagrad", "rowwise"]
    assert names == ["copy", "group", "unique", "clip", "update", *steps, "replay"]
    assert result["command"].startswith("python benchmarks/rows.py kernels --backend numba")
    assert result["load_before"] >= 0 and result["hardware"]["cores"]
    assert result["versions"]["numba"] and result["date"]
    by_name = {r["kernel"]: r for r in result["results"][:8]}
    n, u = by_name["update"]["n"], by_name["update"]["u"]
    assert n == 26 * 64 and by_name["update"]["bytes"] == 44 * n + 248 * u
    assert [by_name[name]["bytes"] for name in steps] == [292 * u, 212 * u, 140 * u]
    assert result["results"][0]["share_of_copy"] == 1.0
    assert done.stdout.count("update") == 1


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
    small = "--rows 2000 --seeds 1 --snapshot-hours 12 --catch-up 4 --batch-size 64 --rule sde"
    result, out = measured("outages", small)
    assert list(result["skip"]) == ["none", "12 h"]
    assert list(result["backlog"]) == ["4", "4, not scaled", "not trained"]
    every = [*result["skip"].values(), *result["backlog"].values()]
    assert all(0 < each["auc"] < 100 for each in every)
    assert result["backlog"]["4"]["auc"] != result["backlog"]["4, not scaled"]["auc"]
    assert "| not trained |" in out


@pytest.mark.runs
@pytest.mark.thorough
def test_days(measured):
    result, out = measured("days", "--rows 1500 --days 3 --seeds 1 --batch-size 64")
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
def test_a_failed_process_of_tables_is_one_line(load, tmp_path):
    peers = load("row_parts.other_tables")
    ids, python = np.zeros((1, 26), np.int64), tmp_path / "python"
    python.write_text("#!/bin/sh\necho No module named recommenders_addons >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(InputError, match=r"--tfra-python failed: .*recommenders_addons"):
        peers.tfra_speeds(str(python), 1, batch=1, ids=ids, known=ids, zipf=ids)


@pytest.mark.system
def test_versions(measured, tmp_path):
    python = tmp_path / "other" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nwhile [ $((i += 1)) -lt 50000 ]; do :; done\n")  # takes time
    python.chmod(0o755)
    some = "start,produce,join,decode"
    small = f"--rows 300 --runs 1 --cases {some}"
    result, out = measured("versions", small, "--against", tmp_path / "other")
    assert ",".join(result["cases"]) == some
    for case, versions in result["cases"].items():
        assert [len(versions[who]) for who in ("this", "other")] == [1, 1]
        assert versions["this"][0]["cpu_seconds"] > 0 and f"| {case} | cpu seconds |" in out


@pytest.fixture
def baseline(load):
    return load("baseline")


@pytest.mark.runs
@pytest.mark.thorough
def test_every_configuration_is_in_the_table_and_in_json(measured, refused, tmp_path):
    """And a second time, finished runs are used again, but no others and no half ones."""
    small = f"{BASELINE} --rows 2000 --updates exact,dense --l2 1e-4 --seeds 2"
    work = tmp_path / "work"
    given = ["--mlp", "8", "--work", work]
    result, out = measured("baseline", small, *given)
    expected = [
        ("128 baseline", "dense"), ("128 exact", "exact"), ("512 CowClip", "exact"),
        ("512 CowClip", "dense"),
    ]  # fmt: skip
    assert [(r["line"], r["update"]) for r in result["results"]] == expected
    for name, update in expected:
        assert f"| {name} | {update} |" in out
    assert out.count("omitted: 16K CowClip") == 2
    first, exact = result["results"][:2]
    assert first["speed_up"] == 1 and first["auc_points_to_baseline"] == 0 < exact["speed_up"]
    assert first["last_auc"] == pytest.approx(exact["last_auc"], abs=1e-4)
    assert all(len(r["runs"][0]["seconds"]) == 1 for r in result["results"])
    assert [r["seed"] for r in first["runs"]] == [1, 2]
    assert first["runs"][0]["test_auc"] != first["runs"][1]["test_auc"]
    assert sum(result["rows"].values()) == 2000 and 0.5 < result["best_possible_auc"] < 1
    assert result["overrides"] == {"l2": 1e-4} and not list(work.glob("runs/*/checkpoints"))
    again = measured("baseline", small, *given)[0]["results"]
    assert all(r["used_again"] for line in again for r in line["runs"])
    code, told = refused("baseline", *small.split(), "--mlp", "4", "--work", work)
    assert code == 2 and "other settings" in told
    metrics = work / "runs" / "none-1x-dense-seed1-round1" / "metrics.csv"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    code, told = refused("baseline", *small.split(), *given)
    assert code == 2 and "not finished; delete the folder" in told


def test_a_stopped_run_is_told_with_the_folder_to_delete(
    baseline, refused, data, tmp_path, monkeypatch
):
    def stopped(*_, **__):
        raise baseline.Stopped(15)

    monkeypatch.setattr(baseline, "train", stopped)
    code, told = refused("baseline", *BASELINE.split(), "--data", data, "--work", tmp_path)
    assert code == 128 + 15 and f"delete the last folder in {tmp_path}/runs" in told


def test_the_speed_up_is_taken_within_each_pass(baseline):
    """A machine that slows down from pass to pass favors no configuration."""

    def runs(*passes):
        return [{"seconds": seconds, "test_auc": [0.5], "seed": 1} for seconds in passes]

    settings = baseline.BaselineSettings(work=Path("work"), multipliers=(8,))
    base, exact, _ = settings.configurations()
    made = {
        base: runs([9, 4, 4], [9, 6, 6], [80, 80, 9]),
        exact: runs([2, 2, 9], [4, 4, 1], [8, 8, 1]),
    }
    result = baseline._result(settings, exact, made, 10_000)
    assert result["speed_up"] == 2  # of 2, 1.5 and 10
    assert result["seconds_per_epoch"] == 4 and result["auc_points_to_baseline"] == 0
