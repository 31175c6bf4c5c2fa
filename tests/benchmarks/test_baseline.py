"""The comparison of the baseline with CowClip, on a tiny log."""

from pathlib import Path

import pytest

SMALL = "--base-batch-size 128 --multipliers 4,128 --epochs 1"


@pytest.fixture
def baseline(load):
    return load("baseline")


@pytest.mark.runs
@pytest.mark.thorough
def test_every_configuration_is_in_the_table_and_in_json(measured, refused, tmp_path):
    """And a second time, finished runs are used again, but no others and no half ones."""
    small = f"{SMALL} --rows 2000 --updates exact,dense --l2 1e-4 --seeds 2"
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
    code, told = refused("baseline", *SMALL.split(), "--data", data, "--work", tmp_path)
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
