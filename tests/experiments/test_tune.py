"""`cowclip tune`: trials on validation rows, budget, resume, and what it writes."""

import csv
import json
import math
import random
import shutil
import sys
from types import SimpleNamespace

import pytest
from tiers import thorough

from cowclip_merlin import compat, scaling
from cowclip_merlin.cli import main
from cowclip_merlin.errors import Diverged, InputError
from cowclip_merlin.experiments import tuning
from cowclip_merlin.experiments.sizing import sizing_for
from cowclip_merlin.experiments.tuning import search as searching
from cowclip_merlin.experiments.tuning import trials as trial_run
from cowclip_merlin.experiments.tuning.search_space import RANGES, SearchSpace, first_settings
from cowclip_merlin.experiments.tuning.settings_file import read_settings
from cowclip_merlin.recipe import own_table_defaults
from cowclip_merlin.system.signals import Stopped
from cowclip_merlin.training import RunSettings, settings_for
from cowclip_merlin.training.run_logs import read_metrics

pytest.importorskip("optuna")
write_figure = searching.write_figure
MODEL = ["--model", "deepfm", "--batch-size", "256", "--mlp", "8", "--device", "cpu"]


@pytest.fixture(scope="session")
def folder(make_once):
    """A prepared folder of 3 columns, split by time."""

    def make(where):
        rng = random.Random(3)
        rows = [(rng.randrange(30), rng.randrange(20), rng.random()) for _ in range(1500)]
        lines = [f"{int(rng.random() < (u % 3 + x) / 3)},u{u},i{i},{x:.3f}" for u, i, x in rows]
        log = where / "log.csv"
        log.write_text("\n".join(["y,user,item,age", *lines]))
        columns = ["--label", "y", "--categorical", "user,item", "--continuous", "age"]
        command = ["prepare", "table", str(log), "--out", str(where / "data"), *columns]
        assert main([*command, "--split", "time"]) == 0

    return make_once("tune", make) / "data"


@pytest.fixture
def search(folder, tmp_path):
    """Runs the command on the folder; `out` and further words."""

    def run(*words, out="tuned", data=folder):
        return main(["tune", str(data), "--out", str(tmp_path / out), *MODEL, *words])

    return run


def pretend(settings, epoch):
    """An AUC that is best at an embedding rate of 1e-3 at the batch, in epoch 2."""
    rate = settings.hyperparameters("table").embedding_lr
    return 0.8 - 0.05 * abs(math.log10(rate) + 3) - 0.01 * abs(epoch - 2)


@pytest.fixture
def trained(monkeypatch):
    """In place of trainings: the settings of those that were asked for."""
    seen = []

    def training(data, settings, *, out, after_epoch, **_):
        seen.append(settings)
        (out / "checkpoints").mkdir(parents=True)
        for epoch in range(1, settings.epochs + 1):
            auc = pretend(settings, epoch)
            values = {"auc": auc, "log_loss": 1 - auc, "auc_error": 0.01}
            after_epoch({"epoch": epoch} | {f"validation_{k}": v for k, v in values.items()})

    monkeypatch.setattr(trial_run, "run_training", training)
    monkeypatch.setattr(compat, "release_models", lambda: None)  # no models
    monkeypatch.setattr(searching, "write_figure", lambda out, study: None)  # takes a second
    return seen


def read_trials(out):
    with (out / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def results(out):
    """Trials without what a clock decides and the number that a failed one has taken."""
    return [{k: v for k, v in row.items() if k not in ("seconds", "trial")} for row in
            read_trials(out)]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.runs
def test_the_file_trains_to_the_validation_auc_of_its_trial(folder, tmp_path, capsys):
    """On a folder without its test rows; the last rows of the split by time are held out."""
    data = shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns(".cache*"))
    shutil.rmtree(data / "test")
    out, words = tmp_path / "tuned", ["--trials", "3", "--epochs", "2"]
    assert main(["tune", str(data), "--out", str(out), *MODEL, *words]) == 0
    said = capsys.readouterr()
    assert f"cowclip train {data} --settings {out / 'settings.yaml'} --out RUN" in said.out
    assert said.err == "" and not (data / ".cache-test").exists()
    rows = read_trials(out)
    assert [row["start"] for row in rows] == ["defaults", "search", "search"]  # too few rows
    best = max(float(row["validation_auc"]) for row in rows)
    assert f"best validation AUC {best:.5f}" in said.out
    kept = [sorted(path.name for path in each.iterdir()) for each in (out / "trials").iterdir()]
    assert kept == [["config.json", "metrics.csv", "reliability.csv", "train.log"]] * 3
    config = json.loads((out / "trials/001/config.json").read_text())
    assert config["settings"]["validation_split"] == "last"

    run = ["train", str(data), "--settings", str(out / "settings.yaml"), "--device", "cpu"]
    held = ["--validation-fraction", "0.1", "--validation-split", "last"]
    assert main([*run, "--out", str(tmp_path / "run"), *held]) == 0
    (*_, last) = read_metrics(tmp_path / "run" / "metrics.csv", epochs=9)
    assert float(last["validation_auc"]) == best
    assert main([*run, "--out", str(out)]) == 2
    assert "holds a search" in capsys.readouterr().err


def test_a_trial_ends_two_epochs_after_its_best_and_counts_with_it(search, trained, tmp_path):
    assert search("--trials", "1", "--epochs", "9") == 0
    (row,) = read_trials(tmp_path / "tuned")
    assert (row["ended"], row["best_epoch"], row["epochs"]) == ("early stop", "2", "4")
    assert float(row["validation_auc"]) == pretend(trained[0], 2)
    assert "\nepochs: 2\n" in (tmp_path / "tuned/settings.yaml").read_text()
    assert not (tmp_path / "tuned/trials/000/checkpoints").exists()


def test_a_plateau_keeps_its_held_out_rows(search, trained, tmp_path):
    assert search("--trials", "1", "--epochs", "9", "--lr-schedule", "plateau") == 0
    found = read_settings(tmp_path / "tuned/settings.yaml")
    names = ("lr_schedule", "epochs", "early_stopping", "validation_fraction")
    assert [found[name] for name in names] == ["plateau", 9, 2, 0.1]
    (row,) = read_trials(tmp_path / "tuned")
    assert row["ended"] == "early stop" and int(row["epochs"]) > 4  # at smaller rates, too


@pytest.mark.parametrize("best", [1, 2])
def test_the_best_epoch_of_new_embeddings_may_be_the_first(
    search, trained, tmp_path, monkeypatch, best
):
    auc = {epoch: 0.8 - 0.01 * abs(epoch - best) for epoch in range(1, 4)}
    monkeypatch.setitem(globals(), "pretend", lambda settings, epoch: auc[epoch])
    assert search("--trials", "1", "--epochs", "3", "--reset-embeddings") == 0
    assert trained[0].reset_embeddings
    found = read_settings(tmp_path / "tuned/settings.yaml")
    assert (found["epochs"], found.get("reset_embeddings", False)) == (best, best > 1)


def test_trials_are_pruned_and_diverge_without_an_error(search, trained, tmp_path, monkeypatch):
    def training(data, settings, **how):
        if settings.hyperparameters("table").dense_lr > 1e-2:
            raise Diverged("training diverged: the loss is nan in epoch 1")
        return real(data, settings, **how)

    real = trial_run.run_training
    monkeypatch.setattr(trial_run, "run_training", training)
    monkeypatch.setattr(searching, "write_figure", write_figure)
    assert search("--trials", "16", "--epochs", "3") == 0
    rows = read_trials(tmp_path / "tuned")
    ended = [row["ended"] for row in rows]
    assert {"epochs", "pruned", "diverged"} == set(ended)
    assert {row["epochs"] for row in rows if row["ended"] == "pruned"} == {"2"}
    best = max(rows, key=lambda row: float(row["validation_auc"] or 0))
    assert best["ended"] == "epochs" and float(best["validation_auc"]) > 0.77
    assert (tmp_path / "tuned/history.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(("number", "trials"), [(0, 2), thorough(9, 11)])  # 8 are random
def test_a_killed_search_goes_on_as_if_it_had_not_been(
    number, trials, search, trained, tmp_path, monkeypatch
):
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert search("--trials", str(trials), out="whole") == 0

    def killed(trial, settings, context):
        if trial.number == number:
            trial_run.trial_folder(context.out, number).mkdir(parents=True)
            raise KeyboardInterrupt  # before the trial's end is recorded
        return trial_run.run_trial(trial, settings, context)

    with monkeypatch.context() as patch:
        patch.setattr(searching, "run_trial", killed)
        assert search("--trials", str(trials), out="part") == 130
    assert search("--trials", str(trials), "--resume", out="part") == 0
    assert results(part) == results(whole)
    assert len(results(part)) == trials and not (part / "trials" / f"{number:03d}").exists()


def test_a_signal_keeps_the_trials(search, trained, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise Stopped(2)

    assert search("--trials", "2") == 0
    monkeypatch.setattr(trial_run, "run_training", stop)
    capsys.readouterr()
    assert search("--trials", "3", "--resume") == 130
    assert "stopped; " in capsys.readouterr().err
    assert len(read_trials(tmp_path / "tuned")) == 2
    assert not (tmp_path / "tuned/trials/002").exists()


def test_time_that_is_up_ends_the_first_trial_with_its_epoch(search, trained, tmp_path):
    assert search("--minutes", "1e-9") == 0
    (row,) = read_trials(tmp_path / "tuned")
    assert (row["ended"], row["epochs"]) == ("time", "1")


def test_a_path_may_have_any_characters(search, trained, tmp_path):
    assert search("--trials", "1", out="a ?b#%41 c") == 0
    assert search("--trials", "2", "--resume", out="a ?b#%41 c") == 0
    assert len(read_trials(tmp_path / "a ?b#%41 c")) == 2


def refused(capsys, code):
    error = capsys.readouterr().err
    assert code == 2 and len(error.splitlines()) == 1, error
    return error


def test_a_search_is_not_replaced_and_not_mixed(search, trained, folder, tmp_path, capsys):
    assert search("--trials", "1") == 0
    capsys.readouterr()
    assert "already holds a search" in refused(capsys, search("--trials", "1"))
    for words, name in (
        (["--epochs", "4"], "epochs 10, not 4"),
        (["--embedding-dim", "4"], "embedding_dim 10, not 4"),
        (["--clip", "none"], "clip None, not none"),
        (["--l2", "0"], "overrides {}, not {'l2': 0.0}"),
    ):
        code = search("--trials", "1", "--resume", *words)
        assert f"searched with {name}; " in refused(capsys, code)
    shutil.copytree(folder, tmp_path / "other")
    described = json.loads((tmp_path / "other/dataset.json").read_text())
    described["fingerprint"] = "another"
    (tmp_path / "other/dataset.json").write_text(json.dumps(described))
    code = search("--trials", "1", "--resume", data=tmp_path / "other")
    assert "searched on other data" in refused(capsys, code)
    (tmp_path / "tuned/study.db").write_text("no database" * 999)
    assert "study.db: SQLite " in refused(capsys, search("--resume"))


def test_without_optuna_one_line_says_what_to_install(search, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    error = refused(capsys, search("--trials", "1"))
    assert "optuna is not installed: pip install 'cowclip-merlin[tune]'" in error
    assert not (tmp_path / "tuned").exists()


def test_if_every_trial_diverges_that_is_one_line(search, monkeypatch, tmp_path, capsys):
    def diverge(*_, **__):
        raise Diverged("training diverged")

    monkeypatch.setattr(trial_run, "run_training", diverge)
    assert "none of 2 trials" in refused(capsys, search("--trials", "2"))
    assert [row["ended"] for row in read_trials(tmp_path / "tuned")] == ["diverged"] * 2


def test_an_error_in_the_first_trial_leaves_nothing(search, monkeypatch, tmp_path, capsys):
    def fail(*_, **__):
        raise InputError("no room")

    monkeypatch.setattr(trial_run, "run_training", fail)
    assert "no room" in refused(capsys, search("--trials", "2"))
    assert not (tmp_path / "tuned").exists()


def test_from_python_a_search_needs_an_end(folder, tmp_path):
    run = RunSettings(model="dcn", batch_size=64, validation_fraction=0.1)
    with pytest.raises(InputError, match="neither trials nor minutes"):
        tuning.tune(folder, run, out=tmp_path / "tuned")


@pytest.mark.parametrize("settings", [{"evaluate_every": 500}, {"monitor": "log_loss"}])
def test_from_python_a_search_compares_aucs_after_epochs(folder, tmp_path, settings):
    run = RunSettings(model="dcn", batch_size=64, validation_fraction=0.1, **settings)
    with pytest.raises(InputError, match="a search compares the AUC after whole epochs; omit it"):
        tuning.tune(folder, run, out=tmp_path / "tuned", trials=1)


SHARED = {"model": "dcn", "batch_size": 8192, "preset": "criteo", "validation_fraction": 0.1}


def data_of(kind, *, rows=450_000, ids=10_000):
    return SimpleNamespace(kind=kind, rows={"train": rows}, tables={"user": ids})


def first(space, data, *, preset=None):
    return first_settings(space, data, rows=data.rows["train"], preset=preset)


def test_the_first_settings_are_the_usual_ones_and_the_formula():
    space = SearchSpace(shared=RunSettings(**SHARED, rule="sde", update="exact"))
    found = first(space, data_of("criteo"))
    assert found["defaults"] == RunSettings(**SHARED, update="exact")
    formula = found["formula"].hyperparameters("table")
    sizing = sizing_for(450_000)
    base = scaling.Hyperparameters(batch_size=sizing.base_batch, **sizing.baseline)
    wanted = scaling.scale(base, to=8192, rule="sde")
    for name in ("embedding_lr", "dense_lr", "l2"):
        assert getattr(formula, name) == pytest.approx(getattr(wanted, name))
    assert found["formula"].effective_clip == "none"
    assert set(first(space, data_of("criteo", rows=1000))) == {"defaults"}


def test_for_a_table_of_ones_own_the_usual_ones_are_those_of_train():
    data, space = data_of("table"), SearchSpace(shared=RunSettings(**SHARED, rule="sqrt"))
    given = {"model": "dcn", "batch_size": 8192, "base_batch_size": 1024}
    train = RunSettings(**given | own_table_defaults(data, given))
    usual = first(space, data)["defaults"]
    assert usual.hyperparameters("table") == train.hyperparameters("table")
    assert (usual.rule, usual.effective_clip) == ("sde", train.effective_clip)
    assert first(space, data, preset="criteo")["defaults"].rule == "cowclip"


def test_the_nearest_point_has_the_scaled_values_of_the_settings():
    space = SearchSpace(shared=RunSettings(**SHARED, rule="sde"))
    usual = RunSettings(**SHARED)
    point = space.nearest(usual)
    assert point.pop("clip") == "cowclip"
    same = RunSettings(**SHARED, rule="sde", clip="cowclip", overrides=point)
    for name in RANGES:
        at = [run.hyperparameters("table") for run in (usual, same)]
        assert getattr(at[0], name) == pytest.approx(getattr(at[1], name))


def test_adagrad_has_rates_of_its_own(search, tmp_path):
    assert search("--trials", "1", "--epochs", "1", "--optimizer", "adagrad") == 0
    found = read_settings(tmp_path / "tuned/settings.yaml")
    names = ("optimizer", "rule", "update", "l2", "initial_accumulator")
    assert [found[name] for name in names] == ["adagrad", "sde", "exact", 0.0, 9.8e-5]
    assert found["embedding_lr"] == 0.05
    given = {"optimizer": "adagrad", "update": "exact", "overrides": {"l2": 0.0}}
    space = SearchSpace(shared=RunSettings(**SHARED, rule="sde", **given))
    assert space.ranges["embedding_lr"] == space.ranges["dense_lr"] == (1e-3, 1.0)
    assert set(first(space, data_of("table"))) == {"defaults"}


def test_given_rates_and_clips_are_kept():
    given = RunSettings(**SHARED, rule="sde", clip="cowclip", overrides={"l2": 1e-4, "zeta": 0.0})
    space = SearchSpace(shared=given)
    assert space.rates == ("embedding_lr", "dense_lr", "r")
    assert first(space, data_of("table"))["formula"].overrides["l2"] == 1e-4
    assert "l2" not in space.nearest(given) and "clip" not in space.nearest(given)


def test_model_batch_and_rows_are_those_of_train(folder, trained, tmp_path, capsys):
    words = ["tune", str(folder), "--mlp", "8", "--trials", "1", "--epochs", "3"]
    assert main([*words, "--out", str(tmp_path / "bare")]) == 0
    assert "model deepfm, batch 4\n" in capsys.readouterr().out
    (settings,) = trained
    usual = settings_for(folder, validation_fraction=0.1)
    for name in ("model", "batch_size", "base_batch_size", "validation_fraction", "update"):
        assert getattr(settings, name) == getattr(usual, name), name
    assert settings.validation_split == "last"
    found = read_settings(tmp_path / "bare/settings.yaml")  # trains on all rows, whatever defaults
    assert found["validation_fraction"] == 0 and "validation_split" not in found


def test_validation_rows_of_prepare_are_scored(folder, trained, tmp_path, capsys):
    log, words = folder.parent / "log.csv", ["--label", "y", "--categorical", "user,item"]
    rows = log.read_text().splitlines()
    (tmp_path / "valid.csv").write_text("\n".join([*rows[:200], ""]))
    (tmp_path / "train.csv").write_text("\n".join([rows[0], *rows[200:], ""]))
    given = ["--validation", str(tmp_path / "valid.csv"), "--out", str(tmp_path / "DATA")]
    assert main(["prepare", "table", str(tmp_path / "train.csv"), *given, *words]) == 0
    search = ["tune", str(tmp_path / "DATA"), *MODEL, "--trials", "1", "--epochs", "2"]
    assert main([*search, "--out", str(tmp_path / "tuned")]) == 0
    assert (trained[0].validation_split, trained[0].validation_fraction) == ("given", 0)
    assert main([*search, "--out", str(tmp_path / "share"), "--validation-fraction", "0.2"]) == 0
    assert (trained[1].validation_split, trained[1].validation_fraction) == ("random", 0.2)
    ones = [rows[0], *(row for row in rows[1:] if row[0] == "1"), ""]
    (tmp_path / "valid.csv").write_text("\n".join(ones))
    again = ["prepare", "table", str(tmp_path / "train.csv"), *given, *words, "--overwrite"]
    assert main(again) == 0
    capsys.readouterr()
    code = main([*search, "--out", str(tmp_path / "bad")])
    assert "validation rows have the label 1" in refused(capsys, code)
