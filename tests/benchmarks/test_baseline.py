"""The comparison of the baseline with CowClip, on a tiny log."""

import json
from pathlib import Path

import pytest

from cowclip_merlin.errors import InputError

SMALL = ["--base-batch-size", "128", "--multipliers", "4,128", "--epochs", "1", "--mlp", "8"]


@pytest.fixture
def baseline(load):
    return load("baseline")


@pytest.mark.runs
@pytest.mark.thorough
def test_every_configuration_is_in_the_table_and_in_json(baseline, data, tmp_path, capsys):
    file = tmp_path / "baseline.json"
    arguments = [*SMALL, "--data", str(data), "--work", str(tmp_path / "work"),
                 "--updates", "exact,dense", "--l2", "1e-4", "--seeds", "2",
                 "--json", str(file)]  # fmt: skip
    baseline.BENCHMARK.main(arguments)
    out, result = capsys.readouterr().out, json.loads(file.read_text())
    expected = [
        ("128 baseline", "dense"), ("128 exact", "exact"), ("512 CowClip", "exact"),
        ("512 CowClip", "dense"),
    ]  # fmt: skip
    assert [(r["line"], r["update"]) for r in result["results"]] == expected
    for name, update in expected:
        assert f"| {name} | {update} |" in out
    assert out.count("omitted: 16K CowClip") == 2
    first = result["results"][0]
    assert first["speed_up"] == 1 and first["auc_points_to_baseline"] == 0
    assert all(len(r["runs"][0]["seconds"]) == 1 for r in result["results"])
    assert [r["seed"] for r in first["runs"]] == [1, 2]
    assert first["runs"][0]["test_auc"] != first["runs"][1]["test_auc"]
    assert result["overrides"] == {"l2": 1e-4} and result["hardware"] and result["versions"]
    assert result["date"] and result["command"].startswith("python benchmarks/baseline.py --base")
    assert str(tmp_path) not in file.read_text() and str(data) not in file.read_text()


@pytest.mark.runs
@pytest.mark.thorough
def test_exact_has_the_baselines_auc(baseline, data, tmp_path):
    settings = baseline.BaselineSettings(
        work=tmp_path, data=data, base_batch=256, multipliers=(4,), epochs=1, mlp=(8,),
        seeds=1, rounds=2,
    )  # fmt: skip
    dense, exact, _ = baseline.compare(settings)["results"]
    assert dense["last_auc"] == pytest.approx(exact["last_auc"], abs=1e-4)
    assert [r["round"] for r in exact["runs"]] == [1, 2] and exact["speed_up"] > 0
    assert dense["runs"][0]["test_auc"] == dense["runs"][1]["test_auc"]
    assert not list(tmp_path.glob("runs/*/checkpoints"))
    again = baseline.compare(settings)["results"][0]
    assert all(r["used_again"] for r in again["runs"])
    with pytest.raises(InputError, match="other settings"):
        baseline.compare(baseline.BaselineSettings(
            work=tmp_path, data=data, base_batch=256, multipliers=(4,), epochs=1, mlp=(4,)
        ))  # fmt: skip
    metrics = tmp_path / "runs" / "none-1x-dense-seed1-round1" / "metrics.csv"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match="not finished; delete the folder"):
        baseline.compare(settings)


@pytest.mark.runs
@pytest.mark.thorough
def test_a_log_is_generated(baseline, tmp_path):
    settings = baseline.BaselineSettings(work=tmp_path, rows=2000)
    data, bayes_auc = baseline.open_data(settings)
    assert sum(data.rows.values()) == 2000 and 0.5 < bayes_auc < 1


@pytest.mark.parametrize(
    "bad",
    [["--updates", "lazy"], ["--multipliers", "0"], ["--multipliers", "8,8"], ["--epochs", "0"],
     ["--model", "fm"], ["--mlp", "x"], ["--updates", "exact,exact"], ["--rows", "0"],
     ["--seed", "-1"], ["--data", "somewhere", "--rows", "9"], ["--device", "gpu"],
     ["--json", "no-such-folder/a.json"]],
)  # fmt: skip
def test_wrong_arguments_are_told_in_one_line(baseline, bad, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        baseline.BENCHMARK.main([*bad, "--work", str(tmp_path)])
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert told.startswith("error: ") and told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_stopped_run_is_told_with_the_folder_to_delete(
    baseline, data, tmp_path, monkeypatch, capsys
):
    def stopped(*_, **__):
        raise baseline.Stopped(15)

    monkeypatch.setattr(baseline, "train", stopped)
    with pytest.raises(SystemExit) as left:
        baseline.BENCHMARK.main([*SMALL, "--data", str(data), "--work", str(tmp_path)])
    assert left.value.code == 128 + 15
    told = capsys.readouterr().err
    assert f"delete the last folder in {tmp_path}/runs" in told and told.count("\n") == 1


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
