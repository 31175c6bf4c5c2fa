"""The comparison with other projects, as far as it goes without their packages."""

import argparse
import json
import sys
from pathlib import Path

import pytest

from cowclip_merlin.errors import InputError


@pytest.fixture
def peers(load):
    return load("peers")


def small(peers, work, **changes):
    values = {"rows": 600, "ids": 400, "batches": (64,), "rounds": 1, "mlp": (8,)} | changes
    return peers.PeerSettings(work=work, **values)


@pytest.mark.runs
@pytest.mark.thorough
def test_ours_run_and_the_others_say_what_they_need(peers, tmp_path):
    result = peers.compare(small(peers, tmp_path))
    rows = {row["contestant"]: row for row in result["results"]}
    assert tuple(rows) == peers.PeerSettings.contestants
    assert rows["bare-mlp"]["ratio_to_bare_mlp"] == 1 and rows["bare-mlp"]["auc"] is None
    for name in peers.OURS[1:]:
        assert rows[name]["rows_per_second"] > 0 and 0 < rows[name]["auc"] < 1
    text = peers.table(result)
    for kind in ("deepctr", "fuxictr"):
        assert f"not run: give --{kind}-python" in text
    assert "not run: give --authors-python and --authors" in text
    assert str(tmp_path) not in json.dumps(result)


def test_the_clock_starts_after_the_warm_up(load, monkeypatch):
    job = load("contestants.job")

    now = iter([100.0, 104.0])
    monkeypatch.setattr(job.time, "perf_counter", lambda: next(now))
    waited = []
    clock = job.Clock(lambda: waited.append(1))
    for rows, steps in ((64, 1), (64, job.WARM_UP_STEPS - 1), (320, 5), (80, 2)):
        clock.tick(rows, steps)
    assert clock.rate() == 400 / 4 and len(waited) == 2


def test_ratios_are_those_of_the_rounds(peers):
    others = [{"rows_per_second": 10.0}, {"rows_per_second": 40.0}, {"rows_per_second": 10.0}]
    assert peers._ratio([20.0, 20.0, 30.0], others) == 2.0
    assert peers._ratio([20.0], None) is None


@pytest.mark.runs
@pytest.mark.thorough
def test_the_third_word_is_the_precision(peers, tmp_path, monkeypatch):
    settings = small(peers, tmp_path, contestants=("cowclip exact", "cowclip exact bfloat16"))
    made, original = [], peers.cowclip._model
    monkeypatch.setattr(peers.cowclip, "_model", lambda *a: made.append(original(*a)) or made[-1])
    peers.compare(settings)
    kinds = [
        {layer.compute_dtype for layer in model.submodules if hasattr(layer, "compute_dtype")}
        for model in made
    ]
    assert "bfloat16" not in kinds[0] and "bfloat16" in kinds[1]


@pytest.mark.system
def test_a_peer_that_fails_is_told(peers, tmp_path):
    settings = small(peers, tmp_path, contestants=("deepctr",), pythons={"deepctr": sys.executable})
    (row,) = peers.compare(settings)["results"]
    assert row["status"].startswith("failed: ModuleNotFoundError")


def test_a_job_survives_the_command_line(peers, load, tmp_path, monkeypatch):
    job = peers.make_job("authors", small(peers, tmp_path), 64)
    monkeypatch.setattr(sys, "argv", ["peer", *job.arguments()])
    assert load("contestants.job").read_job(argparse.ArgumentParser())[0] == job


@pytest.mark.runs
@pytest.mark.thorough
def test_the_command_gives_its_result_with_its_record(peers, tmp_path, capsys):
    file = tmp_path / "peers.json"
    little = ["--rows=600", "--ids=400", "--batches=64", "--rounds=1", "--contestants=bare-mlp"]
    peers.BENCHMARK.main([*little, "--work", str(tmp_path), "--json", str(file)])
    result = json.loads(file.read_text())
    assert result["command"].startswith("python benchmarks/peers.py --rows=600")
    assert result["date"] and result["hardware"] and result["versions"]["tensorflow"]
    assert str(tmp_path) not in file.read_text() and "bare-mlp" in capsys.readouterr().out


@pytest.mark.parametrize(
    "bad",
    [{"contestants": ("nobody",)}, {"rule": "cubic"}, {"batches": (512,)}, {"rounds": 0},
     {"batches": (64, 64)}, {"contestants": ("deepctr", "deepctr")}, {"ids": 3}, {"rows": 9},
     {"lr": float("nan")}, {"pythons": {"deepctr": "no-such/python"}}, {"checkout": Path("none")}],
)  # fmt: skip
def test_wrong_settings(peers, tmp_path, bad):
    with pytest.raises(InputError):
        small(peers, tmp_path, **bad)
