"""`cowclip experiment` and `cowclip sweep`, from the command line to the printed table."""

import gc
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_experiment import MINE, experiment

from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments import outputs, preflight, training_runs
from cowclip_merlin.experiments.definitions import load_experiment
from cowclip_merlin.experiments.results.results_csv import read_results, write_results
from cowclip_merlin.experiments.running import runner
from cowclip_merlin.experiments.session import Session
from cowclip_merlin.experiments.session_settings import SessionSettings, parse_fraction
from cowclip_merlin.experiments.tables.files import read_table
from cowclip_merlin.experiments.tables.table import Cell, Table, mean_cell, verdict
from cowclip_merlin.experiments.tables.text import table_text
from cowclip_merlin.system.folders import lock_folder
from cowclip_merlin.training.run_logs import read_metrics


def test_runs_once_records_and_prints(mine, data, tmp_path, capsys):
    out = tmp_path / "results"
    assert experiment(mine, data, out) == 0
    printed = capsys.readouterr().out
    assert "A small table" in printed and "[80.76]" in printed
    assert "CowClip at 64 times the base batch: too large for this number of rows" in printed
    results = read_results(out)
    assert len(results) == 6 and {r.status for r in results} == {"done"}
    for result in results:
        rows = read_metrics(out / "runs" / result.run_id / "metrics.csv", epochs=9)
        assert float(rows[-1]["test_auc"]) == result.auc
        assert float(rows[-1]["test_auc_error"]) == result.auc_error > 0
        assert not (out / "runs" / result.run_id / "checkpoints").exists()
        assert f"tensorflow {result.tensorflow}" in result.versions
        assert "python 3." in result.versions and "numpy " in result.versions
    table = read_table(out / "tables" / "mine.json")
    assert table.command.startswith(
        "cowclip experiment mine.yaml --data DATA --out RESULTS --seeds 2 --epochs 1"
    )
    auc = [100 * r.auc for r in results if (r.rule, r.batch_size) == ("none", 8)]
    cell = dict(table.rows)["no scaling"][0]
    assert len(auc) == 2 and cell.mean == pytest.approx(sum(auc) / 2) and cell.runs == 2
    errors = sorted(100 * result.auc_error for result in results)
    assert f"(DeLong): {errors[0]:.2f} to {errors[-1]:.2f} points." in table.notes[-1]
    before = (out / "results.csv").read_bytes()
    assert experiment(mine, data, out) == 0
    assert (out / "results.csv").read_bytes() == before
    assert "[1/" not in capsys.readouterr().out


@pytest.mark.thorough
def test_a_run_starts_without_the_tables_of_earlier_runs(mine, data, tmp_path, monkeypatch):
    """Else an experiment on a large log ends when the memory is full."""
    tables, train = [], runner._train

    def counting(*args, **kwargs):
        variables = [x for x in gc.get_objects() if isinstance(x, compat.tensorflow().Variable)]
        tables.append(sum(x.name.endswith("/embeddings:0") for x in variables))
        return train(*args, **kwargs)

    monkeypatch.setattr(runner, "_train", counting)
    assert experiment(mine, data, tmp_path / "results") == 0
    assert len(tables) == 6 and tables[-1] <= tables[0]


def test_a_table_of_older_runs_does_not_speak_of_errors_that_they_lack(mine, data, tmp_path):
    out, only = tmp_path / "results", ["--lines", "CowClip", "--seeds", "1"]
    assert experiment(mine, data, out, *only) == 0
    write_results(out, [replace(result, auc_error=None) for result in read_results(out)])
    assert experiment(mine, data, out, *only) == 0
    assert not any("DeLong" in note for note in read_table(out / "tables" / "mine.json").notes)


@pytest.mark.thorough
def test_a_stopped_experiment_goes_on(mine, data, tmp_path, capsys):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    only = ["--lines", "CowClip", "--seeds", "1", "--epochs", "6"]
    assert experiment(mine, data, whole, *only) == 0

    def interrupt():
        while not list(stopped.glob("runs/*/metrics.csv")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        assert experiment(mine, data, stopped, *only) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "same command again" in capsys.readouterr().err
    assert read_results(stopped) == []
    assert experiment(mine, data, stopped, *only) == 0
    (a,), (b,) = read_results(whole), read_results(stopped)
    assert (a.auc, a.log_loss, a.config_hash) == (b.auc, b.log_loss, b.config_hash)
    (said,) = stopped.glob("runs/*/train.log")
    assert "resumed from" in said.read_text()  # and not made anew, with the same numbers


def half_removed(folder):
    for part in folder.glob("*.index"):
        part.unlink()
    raise SystemExit


def not_recorded(folder, result):
    raise SystemExit


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "name", "killed"),
    [
        (runner, "shutil", SimpleNamespace(rmtree=half_removed)),
        (training_runs, "append_result", not_recorded),
    ],
)
def test_killed_after_the_last_step_of_a_run(
    mine, data, tmp_path, monkeypatch, module, name, killed
):
    out, only = tmp_path / "results", ["--lines", "CowClip", "--seeds", "1"]
    assert experiment(mine, data, tmp_path / "whole", *only) == 0
    with monkeypatch.context() as patch:
        patch.setattr(module, name, killed)
        with pytest.raises(SystemExit):
            experiment(mine, data, out, *only)
    assert experiment(mine, data, out, *only) == 0
    (whole,), (mine,) = read_results(tmp_path / "whole"), read_results(out)
    assert (mine.auc, mine.best_epoch, mine.epochs) == (whole.auc, whole.best_epoch, whole.epochs)
    assert not list(out.glob("runs/*/checkpoints"))


def test_a_path_that_sounds_like_divergence_is_none(mine, data, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise InputError("runs-diverged/runs: damaged checkpoint")

    monkeypatch.setattr(runner, "train", refused)
    assert experiment(mine, data, tmp_path / "results", "--seeds", "1") == 2
    assert read_results(tmp_path / "results") == []


@pytest.mark.thorough
def test_a_figure_by_epoch_needs_the_run_folders(mine, data, tmp_path, capsys):
    """With some of them gone it would be half empty, with all of them an empty picture."""
    out, own = tmp_path / "results", tmp_path / "curves.yaml"
    own.write_text(MINE.replace("title:", "kind: curves\ntitle:", 1))
    only = ["--lines", "CowClip", "--seeds", "1"]
    assert experiment(str(own), data, out, *only) == 0
    drawn = (out / "figures" / "curves.svg").read_bytes()
    shutil.rmtree(out / "runs")
    assert experiment(str(own), data, out, *only) == 2
    assert "metrics.csv: has 0 of 1 epochs" in capsys.readouterr().err
    assert (out / "figures" / "curves.svg").read_bytes() == drawn


def test_a_dry_run_of_a_figure_tells_what_it_trains(data, tmp_path, capsys):
    out = ["--data", str(data), "--out", str(tmp_path), "--max-multiplier", "4"]
    assert main(["experiment", "figure4", *out, "--dry-run"]) == 0
    assert "one training of" in capsys.readouterr().out


@pytest.mark.thorough
def test_the_device_is_chosen_before_anything_starts_tensorflow(mine, data, tmp_path, monkeypatch):
    done = []
    for name in ("choose_device", "build_optimizer"):
        monkeypatch.setattr(preflight, name, lambda *a, _name=name, **_: done.append((_name, *a)))
    assert experiment(mine, data, tmp_path / "results", "--device", "cpu", "--dry-run") == 0
    assert done[0] == ("choose_device", "cpu") and done[1][0] == "build_optimizer"


@pytest.mark.thorough
def test_figures_are_of_the_share_of_the_rows(data, tmp_path, monkeypatch):
    seen = []
    known = outputs.from_results.id_frequency_figure
    monkeypatch.setattr(
        outputs.from_results,
        "id_frequency_figure",
        lambda data: (seen.append(data), known(data))[1],
    )
    words = ["experiment", "figure3", "--data", str(data)]
    for out, scale in (("all", "1"), ("half", "1/2"), ("half", "1/2")):
        assert main([*words, "--out", str(tmp_path / out), "--scale", scale]) == 0
    whole, half, _ = (each.rows["train"] for each in seen)
    assert 0.4 * whole < half < 0.6 * whole


@pytest.mark.thorough
def test_dry_run_trains_nothing(mine, data, tmp_path, capsys):
    assert experiment(mine, data, tmp_path / "results", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "6 runs, about" in printed and "base batch 8, largest 32" in printed
    assert not (tmp_path / "results").exists()


def test_a_diverged_run_is_a_result(mine, data, tmp_path, capsys):
    path = tmp_path / "wild.yaml"
    path.write_text(MINE.replace("rule: none,", "rule: none, overrides: {dense_lr: 1e30},"))
    out = tmp_path / "results"
    assert experiment(str(path), data, out, "--lines", "no scaling", "--seeds", "1") == 0
    assert {r.status for r in read_results(out)} == {"diverged"}
    assert "diverged" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["curves", "time"])
def test_a_figure_of_runs_that_all_diverged(kind, data, tmp_path, capsys):
    path = tmp_path / "wild.yaml"
    line = "{label: a, rule: none, overrides: {dense_lr: 1e30}, multipliers: [1]}"
    path.write_text(f"title: t\nclaim: c\nkind: {kind}\nlines: [{line}]")
    assert experiment(str(path), data, tmp_path / "results", "--seeds", "1") == 0
    assert "no figure: every run diverged" in capsys.readouterr().out


def test_the_command_takes_the_same_share_of_the_rows(data, tmp_path):
    made = Session(SessionSettings(data=data, out=tmp_path, scale=1 / 3))
    words = made.command(load_experiment("table2")).split()
    assert parse_fraction(words[words.index("--scale") + 1]) == 1 / 3


def test_list(capsys):
    assert main(["experiment", "--list"]) == 0
    assert "table12" in capsys.readouterr().out


def test_verdicts_need_two_seeds_and_a_difference():
    small = mean_cell([80.0, 80.1, 79.9])
    assert verdict(mean_cell([80.05, 80.0, 79.95]), small) == "noise"
    assert verdict(mean_cell([79.0, 79.1, 78.9]), small) == "worse"
    assert verdict(mean_cell([81.0, 81.1, 80.9]), small) == "better"
    assert (
        verdict(mean_cell([0.4, 0.41]), mean_cell([0.5, 0.51]), higher_is_better=False) == "better"
    )
    assert verdict(mean_cell([81.0]), small) == ""


@pytest.mark.thorough
def test_the_printed_table_shows_signs(mine, data, tmp_path):
    out = tmp_path / "results"
    assert experiment(mine, data, out, "--lines", "no scaling") == 0
    text = table_text(read_table(out / "tables" / "mine.json"))
    assert "against no scaling at batch 8" in text
    assert "not run" in text.splitlines()[-2] + text.splitlines()[-1]
    signs = [Cell(mean=1.0, runs=2, verdict=v) for v in ("better", "worse", "noise", "")]
    made = Table(
        name="t", title="T", claim="", unit="%", corner="", columns=("a", "b", "c", "d"),
        rows=(("line", tuple(signs)),), reference="d",
    )  # fmt: skip
    (line,) = [each for each in table_text(made).splitlines() if each.startswith("line")]
    assert [cell[-1] for cell in line.split()[1:]] == ["+", "-", "=", "0"]


def test_one_process_at_a_time_works_in_a_folder(mine, data, tmp_path, capsys):
    out = tmp_path / "results"
    with lock_folder(out, "taken"):
        assert experiment(mine, data, out) == 2
    assert "results: another experiment" in capsys.readouterr().err
    assert read_results(out) == []


def test_the_printed_legend_names_what_is_there():
    plain = Table(
        name="t", title="T", claim="", unit="rates", corner="", columns=("1K",),
        rows=(("a", (Cell(text="1e-4"),)),), reference="a at batch 1",
    )  # fmt: skip
    assert table_text(plain).splitlines()[-1] == "rates"
    number = Cell(mean=1.0, spread=0.5, runs=3, published=2.0, verdict="noise")
    text = table_text(replace(plain, rows=(("a", (number,)),)))
    assert "rates; mean ± standard deviation over seeds; [published]; against a at batch 1:" in text
