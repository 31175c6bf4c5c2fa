"""The comparison with other projects, as far as it goes without their packages."""

import sys

import pytest


@pytest.fixture
def peers(load):
    return load("peers")


@pytest.mark.runs
@pytest.mark.thorough
def test_ours_run_and_the_others_say_what_they_need(peers, measured, tmp_path, monkeypatch):
    made, original = [], peers.ours.random_model

    def random_model(*words, **settings):
        made.append(original(*words, **settings))
        return made[-1]

    monkeypatch.setattr(peers.ours, "random_model", random_model)
    little = "--rows=600 --ids=400 --batches=64 --rounds=1"
    result, text = measured("peers", little, "--work", tmp_path / "work")
    rows = {row["contestant"]: row for row in result["results"]}
    assert tuple(rows) == peers.PeerSettings.contestants
    assert rows["bare-mlp"]["ratio_to_bare_mlp"] == 1 and rows["bare-mlp"]["auc"] is None
    for name in peers.OURS[1:]:
        assert rows[name]["rows_per_second"] > 0 and 0 < rows[name]["auc"] < 1
    for kind in ("deepctr", "fuxictr"):
        assert f"not run: give --{kind}-python" in text
    assert "not run: give --authors-python and --authors" in text
    precisions = [{getattr(x, "compute_dtype", None) for x in model.submodules} for model in made]
    assert ["bfloat16" in each for each in precisions] == [
        name.endswith("bfloat16") for name in peers.OURS[1:]
    ]


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
    def turns(*speeds):
        return [{"rows_per_second": speed, "auc": 0.5} for speed in speeds]

    made = {(64, name): turns(20.0, 20.0, 30.0) for name in peers.PeerSettings.contestants}
    made[64, peers.REFERENCE] = turns(10.0, 40.0, 10.0)
    rows = {name: peers.result_of((64, name), made) for _, name in made}
    assert rows["deepctr"]["ratio_to_cowclip"] == 2.0  # of 2, 0.5 and 3


@pytest.mark.system
def test_a_peer_that_fails_is_told(peers, tmp_path):
    settings = peers.PeerSettings(
        work=tmp_path, rows=600, ids=400, batches=(64,), rounds=1,
        contestants=("deepctr",), deepctr_python=sys.executable,
    )  # fmt: skip
    (row,) = peers.compare(settings)["results"]
    assert row["status"].startswith("failed: ModuleNotFoundError")
