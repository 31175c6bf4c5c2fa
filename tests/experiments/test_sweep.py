"""Sweeps: the grid, the way on from its best point, and what experiments get from them."""

import json
import math
import shlex
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_experiment import SWEEP, experiment

from cowclip_merlin.cli import main
from cowclip_merlin.experiments.files import experiment_names, load_experiment
from cowclip_merlin.experiments.on_data.plan import plan_runs
from cowclip_merlin.experiments.on_data.sweeps import (
    STEPS_BEYOND,
    Axis,
    best_values,
    grid_points,
    neighbors,
    plan_sweep,
    sweep_axes,
    sweep_tables,
)
from cowclip_merlin.experiments.on_data.trainings import DataSession, TrainingRuns
from cowclip_merlin.experiments.results import read_results, read_tuned, tuned_by_size
from cowclip_merlin.experiments.settings import DataSettings
from cowclip_merlin.experiments.sizing import sizing_for
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.training.run_logs import read_metrics
from cowclip_merlin.workflows import PreparedData

SMALL = sizing_for(450_000, epochs=4)
SWEEPS = [name for name in experiment_names() if load_experiment(name).kind == "sweep"]


def score(auc):
    """Stands for a result."""
    status = "diverged" if math.isnan(auc) else "done"
    return SimpleNamespace(auc=auc, status=status)


def all_runs(name, auc=None, tuned=None):
    """The runs of a sweep and their results, if `auc(run)` gives those."""
    done = {}

    def results_of(runs):
        for run in runs if auc else ():
            done.setdefault(json.dumps(run.settings.as_dict(), sort_keys=True), score(auc(run)))
        found = [(run, json.dumps(run.settings.as_dict(), sort_keys=True)) for run in runs]
        return {run: done[key] for run, key in found if key in done}

    runs = plan_sweep(
        load_experiment(name), SMALL, results_of=results_of, seeds=1, tuned=tuned or {}
    )
    return runs, results_of(runs)


@pytest.mark.parametrize("name", SWEEPS)
def test_before_there_are_results_the_runs_are_the_grid(name):
    runs, results = all_runs(name)
    assert {run.settings.validation_fraction for run in runs} == {0.1}
    assert len(runs) == len(grid_points(load_experiment(name))) * len(
        load_experiment(name).lines[0].multipliers
    )
    assert results == {}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_neighbour_is_one_step_on_one_axis(name):
    sweep = load_experiment(name)
    for point in grid_points(sweep):
        near = neighbors(sweep, point)
        assert len(near) == 2 * len(point), "there is room beyond every end"
        for other in near:
            assert sum(a != b for a, b in zip(point, other)) == 1
            assert point in neighbors(sweep, other)


@pytest.mark.parametrize(
    ("values", "ladder"),
    [
        ((2.0,), [2]),
        ((0.0, 1e-5), [0, 1e-5]),
        ((0.0, 2.0, 1.0), [0, 1, 2, 4, 8, 16]),
        ((3.0, 1.0), [0.037037, 0.111111, 0.333333, 1, 3, 9, 27, 81]),
    ],
)
def test_an_axis_goes_on_in_the_ratio_of_its_end_and_not_from_zero(values, ladder):
    assert Axis(name="l2", values=values, factor=False).extended_values() == ladder


@settings(max_examples=25)  # an example plans some hundred runs
@given(lr=st.integers(-6, 6), l2=st.integers(-6, 6))
def test_the_search_goes_on_to_the_best_within_reach(lr, l2):
    """The score is a hill over the logarithms of both rates."""
    rates = SMALL.baseline

    def auc(run):
        by_lr = math.log(run.settings.overrides["embedding_lr"] / rates["embedding_lr"], 3)
        by_l2 = math.log10(run.settings.overrides["l2"] / rates["l2"])
        return 0.8 - 0.01 * (by_lr - lr) ** 2 - 0.01 * (by_l2 - l2) ** 2

    _, results = all_runs("sweep_baseline", auc)
    found = best_values(load_experiment("sweep_baseline"), results)
    steps_lr = round(math.log(found["embedding_lr"] / rates["embedding_lr"], 3))
    steps_l2 = round(math.log10(found["l2"] / rates["l2"]))
    assert steps_lr == max(-STEPS_BEYOND, min(1 + STEPS_BEYOND, lr))
    assert steps_l2 == max(-2 - STEPS_BEYOND, min(STEPS_BEYOND, l2))


def test_equal_scores_end_the_search_at_the_first_of_them():
    runs, results = all_runs("sweep_clip_global", lambda run: 0.7)
    assert [run.settings.overrides["bound"] for run in runs] == [0.1, 0.01, 0.001, 0.0001, 1.0]
    assert best_values(load_experiment("sweep_clip_global"), results) == {"bound": 0.1}


def test_the_best_mean_of_the_batches_goes_into_plans():
    sweep = load_experiment("sweep_r")
    good, uneven = (
        "r 0.1, embedding_lr x3, dense_lr x1, l2 x0.1",
        "r 1, embedding_lr x1, dense_lr x1, l2 x1",
    )
    known = {good: {1: 0.75, "largest": 0.77}, uneven: {1: 0.9, "largest": 0.6}}
    diverged = "r 1, embedding_lr x3, dense_lr x1, l2 x1"

    def auc(run):
        return (
            math.nan if run.label == diverged else known.get(run.label, {}).get(run.multiplier, 0.7)
        )

    _, results = all_runs("sweep_r", auc)
    chosen = best_values(sweep, results)
    rates = SMALL.cowclip
    at = {"r": 0.1, "embedding_lr": rates["embedding_lr"] * 3, "l2": rates["l2"] / 10}
    assert chosen == pytest.approx(at | {"dense_lr": rates["dense_lr"]})
    table = next(sweep_tables(sweep, SMALL, results, data="", command=""))
    assert table.columns == ("x1 = 256", "x32 = 8,192", "mean")
    assert table.rows[0][0] == good and table.rows[-1][0] == diverged
    assert [c.mean for c in table.rows[0][1]] == pytest.approx([75, 77, 76])
    assert [(c.text, c.mean) for c in table.rows[-1][1]] == [("diverged", None)] * 3
    runs = plan_runs(load_experiment("table3"), SMALL, seeds=1, tuned={"cowclip": chosen})
    (mine,) = [r.settings for r in runs if (r.label, r.multiplier) == ("DeepFM", 8)]
    assert mine.validation_fraction == 0
    assert mine.hyperparameters("criteo").r == 0.1
    assert mine.hyperparameters("criteo").l2 == pytest.approx(chosen["l2"] * 8)


def test_a_point_that_was_run_at_one_of_two_batches_cannot_win():
    runs, _ = all_runs("sweep_r")
    half = next(run for run in runs if run.settings.overrides["r"] == 0.1)
    results = {run: score(0.7) for run in runs if run is half or run.label != half.label}
    results[half] = score(0.9)
    assert best_values(load_experiment("sweep_r"), results)["r"] == 1


def test_a_sweep_starts_from_what_others_chose_and_not_from_its_own_choice():
    tuned = {"cowclip": {"l2": 0.5, "r": 7.0}, "clip_global": {"bound": 3.0}}
    first, *_ = all_runs("sweep_clip_global", tuned=tuned)[0]
    assert (first.settings.overrides["l2"], first.settings.overrides["bound"]) == (0.5, 0.1)
    first, *_ = all_runs("sweep_r", tuned=tuned)[0]
    assert first.settings.overrides["l2"] == SMALL.cowclip["l2"]


@pytest.mark.parametrize("name", sorted(set(SWEEPS) - {"sweep_lr"}))  # which shows a curve
def test_what_a_sweep_chose_some_table_uses(name):
    (line,) = load_experiment(name).lines
    chosen = {axis.name: 0.123 for axis in sweep_axes(load_experiment(name))}
    users = [load_experiment(n) for n in experiment_names() if load_experiment(n).kind == "runs"]
    runs = [
        run
        for user in users
        for run in plan_runs(user, SMALL, seeds=1, tuned={line.tuned_group: chosen})
        if all(run.settings.overrides.get(n) == value for n, value in chosen.items())
    ]
    assert runs and {run.settings.optimizer for run in runs} == {line.optimizer}


def test_tuned_values_are_for_their_sizes_only(swept, mine, data):
    """Base values at another size mean other things; part of a sweep has chosen nothing."""
    part, out = swept / "part", swept / "results"
    assert len(read_results(part)) == 1 and not (part / "tuned.json").exists()
    (values,) = json.loads((out / "tuned.json").read_text()).values()
    kept = DataSettings(data=data, out=out, mlp=(8,), epochs=1, max_multiplier=4, steps=10)
    own = load_experiment(str(mine))
    assert read_tuned(out, TrainingRuns(DataSession(kept), own).tuned_key) == values
    for changed in ({"epochs": 2}, {"mlp": (9,)}, {"max_multiplier": 2}, {"scale": 0.5}):
        made = DataSession(replace(kept, **changed))
        key = TrainingRuns(made, own).tuned_key
        assert read_tuned(out, key) == {} and key.startswith(made.whole.fingerprint)
    assert list(tuned_by_size(out, made.whole.fingerprint).values()) == [values]


@pytest.mark.thorough
def test_a_sweep_keeps_its_best_and_experiments_use_it(swept, mine, data, tmp_path):
    out = shutil.copytree(swept / "results", tmp_path / "results")
    results = {r.r: r for r in read_results(out)}
    assert {r.split for r in results.values()} == {"validation"}
    chosen = max(results.values(), key=lambda r: r.auc)
    ((key, tuned),) = json.loads((out / "tuned.json").read_text()).items()
    assert tuned == {"cowclip": {"r": chosen.r}} and " 1 epochs, mlp " in key
    printed = (swept / "printed.txt").read_text()
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
    """On a share of the rows it names no command, which would train on all of them."""
    rows = [f"{n % 2},{n % 7},{n % 5}" for n in range(600)]
    for name, part in (("train", rows[:500]), ("valid", rows[500:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["y,a,b", *part, ""]))
    data, sweep = tmp_path / "DATA", tmp_path / "sweep.yaml"
    words = ["--validation", str(tmp_path / "valid.csv"), "--label", "y", "--categorical", "a,b"]
    assert main(["prepare", "table", str(tmp_path / "train.csv"), "--out", str(data), *words]) == 0
    sweep.write_text(SWEEP.replace("[1.0, 0.1]", "[1.0]"))
    for name, share in (("whole", "1"), ("half", "1/2")):
        out, more = tmp_path / name, ("--seeds", "1", "--scale", share, "--steps", "5")
        assert experiment(sweep, data, out, *more, verb="sweep") == 0, capsys.readouterr().err
        assert ("cowclip train" in capsys.readouterr().out) == (name == "whole")
        (result,) = read_results(out)
        (run,) = (out / "runs").iterdir()
        settings = RunConfig.load(run).settings
        assert (settings.validation_split, settings.validation_fraction) == ("given", 0)
        (row,) = read_metrics(run / "metrics.csv", epochs=1)
        assert result.split == "validation" and result.auc == float(row["validation_auc"])
    assert result.train_rows < PreparedData.load(data).rows["train"] * 0.6


def test_a_sweep_whose_runs_all_diverge_chooses_nothing(data, tmp_path, capsys):
    sweep, out = tmp_path / "sweep.yaml", tmp_path / "results"
    wild = "{label: CowClip, overrides: {dense_lr: 1.0e30}, "
    sweep.write_text(SWEEP.replace("{label: CowClip, ", wild).replace("[1.0, 0.1]", "[1.0]"))
    assert experiment(sweep, data, out, "--seeds", "1", verb="sweep") == 0
    assert {r.status for r in read_results(out)} == {"diverged"}
    assert not list(out.glob("runs/*/checkpoints"))
    assert not (out / "tuned.json").exists()
    assert "cowclip train" not in capsys.readouterr().out
