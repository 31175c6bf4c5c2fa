"""Sweeps from the command line: what they choose, keep, and hand on to experiments."""

import json
import shlex
from dataclasses import replace

import pytest
from small_experiment import SWEEP, experiment

from cowclip_merlin.cli import main
from cowclip_merlin.experiments.definitions import load_experiment
from cowclip_merlin.experiments.planning.grid import expand_sweep, grid_points
from cowclip_merlin.experiments.results.results_csv import read_results
from cowclip_merlin.experiments.results.tuned import read_tuned, tuned_by_size
from cowclip_merlin.experiments.session import Session
from cowclip_merlin.experiments.session_settings import SessionSettings
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.training.run_logs import read_metrics
from cowclip_merlin.workflows import PreparedData


@pytest.mark.thorough
def test_tuned_values_are_for_their_sizes_only(mine, data, tmp_path):
    """Base values at another size mean other things; part of a sweep has chosen nothing."""
    out, sweep = tmp_path / "results", tmp_path / "sweep.yaml"
    sweep.write_text(SWEEP)
    points = expand_sweep(
        load_experiment(str(sweep)), grid_points(load_experiment(str(sweep)))
    ).lines
    part = ["--seeds", "1", "--lines", points[0].label]
    assert experiment(str(sweep), data, out, *part, verb="sweep") == 0
    assert len(read_results(out)) == 1 and not (out / "tuned.json").exists()
    assert experiment(str(sweep), data, out, "--seeds", "1", verb="sweep") == 0
    (values,) = json.loads((out / "tuned.json").read_text()).values()
    kept = SessionSettings(data=data, out=out, mlp=(8,), epochs=1, max_multiplier=4)
    made = Session(kept)
    assert read_tuned(out, made.tuned_key(load_experiment(mine))) == values
    for changed in ({"epochs": 2}, {"mlp": (9,)}, {"max_multiplier": 2}, {"scale": 0.5}):
        made = Session(replace(kept, **changed))
        key = made.tuned_key(load_experiment(mine))
        assert read_tuned(out, key) == {} and key.startswith(made.context.fingerprint)
    assert list(tuned_by_size(out, made.context.fingerprint).values()) == [values]


@pytest.mark.thorough
def test_a_sweep_keeps_its_best_and_experiments_use_it(mine, data, tmp_path, capsys):
    out, sweep = tmp_path / "results", tmp_path / "sweep.yaml"
    sweep.write_text(SWEEP)
    assert experiment(str(sweep), data, out, "--seeds", "1", verb="sweep") == 0
    results = {r.r: r for r in read_results(out)}
    assert {r.split for r in results.values()} == {"validation"}
    chosen = max(results.values(), key=lambda r: r.auc)
    ((key, tuned),) = json.loads((out / "tuned.json").read_text()).items()
    assert tuned == {"cowclip": {"r": chosen.r}} and " 1 epochs, mlp " in key
    printed = capsys.readouterr().out
    assert "test rows are not used" in printed
    assert experiment(mine, data, out, "--lines", "CowClip", "--seeds", "1") == 0
    used = read_results(out)[-1]
    assert used.r == chosen.r
    (command,) = [line for line in printed.splitlines() if line.startswith("  cowclip train")]
    run = tmp_path / "run"
    words = {"DATA": str(data), "RUN": str(run)}
    assert main([words.get(word, word) for word in shlex.split(command)[1:]]) == 0
    assert float(read_metrics(run / "metrics.csv", epochs=1)[-1]["test_auc"]) == used.auc


def test_a_sweep_scores_the_validation_rows_of_prepare(tmp_path, capsys):
    rows = [f"{n % 2},{n % 7},{n % 5}" for n in range(600)]
    for name, part in (("train", rows[:500]), ("valid", rows[500:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["y,a,b", *part, ""]))
    data, sweep = tmp_path / "DATA", tmp_path / "sweep.yaml"
    words = ["--validation", str(tmp_path / "valid.csv"), "--label", "y", "--categorical", "a,b"]
    assert main(["prepare", "table", str(tmp_path / "train.csv"), "--out", str(data), *words]) == 0
    sweep.write_text(SWEEP)
    for name, share in (("whole", "1"), ("half", "1/2")):
        out = tmp_path / name
        more = ("--seeds", "1", "--lines", "r 1", "--scale", share, "--steps", "5")
        assert experiment(str(sweep), data, out, *more, verb="sweep") == 0, capsys.readouterr().err
        (result,) = read_results(out)
        (run,) = (out / "runs").iterdir()
        settings = RunConfig.load(run).settings
        assert (settings.validation_split, settings.validation_fraction) == ("given", 0)
        (row,) = read_metrics(run / "metrics.csv", epochs=1)
        assert result.split == "validation" and result.auc == float(row["validation_auc"])
    assert result.train_rows < PreparedData.load(data).rows["train"] * 0.6


def test_a_sweep_whose_runs_all_diverge_chooses_nothing(data, tmp_path, capsys):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        "kind: sweep\ntitle: T\nclaim: C\nlines: [{label: CowClip, multipliers: [largest],"
        " overrides: {dense_lr: 1.0e30}}]\ngrid: {r: [1.0]}\n"
    )
    out = tmp_path / "results"
    assert experiment(str(sweep), data, out, "--seeds", "1", verb="sweep") == 0
    assert {r.status for r in read_results(out)} == {"diverged"}
    assert not list(out.glob("runs/*/checkpoints"))
    assert not (out / "tuned.json").exists()
    assert "cowclip train" not in capsys.readouterr().out


@pytest.mark.thorough
def test_a_sweep_on_a_share_of_the_rows_names_no_command(data, tmp_path, capsys):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(SWEEP)
    out = tmp_path / "results"
    given = ("--seeds", "1", "--scale", "1/2", "--steps", "25")
    assert experiment(str(sweep), data, out, *given, verb="sweep") == 0
    assert "cowclip train" not in capsys.readouterr().out
