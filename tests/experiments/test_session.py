"""`cowclip experiment`, from the command line to the printed table."""

import errno
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_experiment import MINE, ONE, experiment

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.files import load_experiment
from cowclip_merlin.experiments.on_data import outputs, trainings
from cowclip_merlin.experiments.on_data.trainings import DataSession
from cowclip_merlin.experiments.results import read_results, write_results
from cowclip_merlin.experiments.settings import DataSettings, parse_fraction
from cowclip_merlin.experiments.tables import (
    Cell,
    Table,
    mean_cell,
    read_table,
    table_text,
    verdict,
    write_table,
)
from cowclip_merlin.system.folders import lock_folder
from cowclip_merlin.training import run_logs


def test_runs_once_records_and_prints(made, data, mine, copied, capsys):
    """Without the tables of earlier runs: else a large log fills the memory."""
    printed = (made / "printed.txt").read_text()
    assert "A small table" in printed and "[80.76]" in printed
    assert "CowClip at 64 times the base batch: too large for this number of rows" in printed
    results = read_results(copied)
    assert len(results) == 6 and {r.status for r in results} == {"done"}
    for result in results:
        rows = run_logs.read_metrics(copied / "runs" / result.run_id / "metrics.csv", epochs=9)
        assert float(rows[-1]["test_auc"]) == result.auc
        assert float(rows[-1]["test_auc_error"]) == result.auc_error > 0
        assert not (copied / "runs" / result.run_id / "checkpoints").exists()
        assert f"tensorflow {result.tensorflow}" in result.versions
        assert "python 3." in result.versions and "numpy " in result.versions
    table = read_table(copied / "tables/mine.json")
    assert table.command.startswith(
        "cowclip experiment mine.yaml --data DATA --out RESULTS --seeds 2 --epochs 1"
    )
    auc = [100 * r.auc for r in results if (r.rule, r.batch_size) == ("none", 64)]
    cell = dict(table.rows)["no scaling"][0]
    assert len(auc) == 2 and cell.mean == pytest.approx(sum(auc) / 2) and cell.runs == 2
    errors = sorted(100 * result.auc_error for result in results)
    assert f"(DeLong): {errors[0]:.2f} to {errors[-1]:.2f} points." in table.notes[-1]
    figure = json.loads((copied / "figures/mine_auc.json").read_text())
    assert figure["fingerprint"] == table.fingerprint and len(table.fingerprint) == 64
    before = (copied / "results.csv").read_bytes()
    write_table(copied / "tables", replace(table, fingerprint=""))
    assert experiment(mine, data, copied) == 0  # outputs of the same data are replaced
    assert (copied / "results.csv").read_bytes() == before
    assert "[1/" not in capsys.readouterr().out
    tables = json.loads((made / "tables.json").read_text())
    assert len(tables) == 6 and tables[-1] <= tables[0]


def test_a_table_of_runs_without_an_error_of_the_auc_does_not_speak_of_it(mine, data, copied):
    write_results(copied, [replace(result, auc_error=None) for result in read_results(copied)])
    assert experiment(mine, data, copied, *ONE) == 0
    assert not any("DeLong" in note for note in read_table(copied / "tables/mine.json").notes)


@pytest.mark.thorough
def test_a_stopped_experiment_goes_on(mine, data, tmp_path, monkeypatch, capsys):
    whole, stopped, two = tmp_path / "whole", tmp_path / "stopped", [*ONE, "--epochs", "2"]
    assert experiment(mine, data, whole, *two) == 0
    write = run_logs.write_metrics

    def write_and_stop(*arguments):
        write(*arguments)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(run_logs, "write_metrics", write_and_stop)
            assert experiment(mine, data, stopped, *two) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "same command again" in capsys.readouterr().err
    assert read_results(stopped) == []
    assert experiment(mine, data, stopped, *two) == 0
    (a,), (b,) = read_results(whole), read_results(stopped)
    assert (a.auc, a.log_loss, a.config_hash) == (b.auc, b.log_loss, b.config_hash)
    (said,) = stopped.glob("runs/*/train.log")
    assert "resumed from" in said.read_text()  # and not made anew, with the same numbers


def killed(folder, result=None):
    """In the middle of its clean-up, or before it is recorded."""
    for part in folder.glob("*.index"):
        part.unlink()
    raise SystemExit


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "end"), [("shutil", SimpleNamespace(rmtree=killed)), ("append_rows", killed)]
)
def test_killed_after_the_last_step_of_a_run(made, mine, data, tmp_path, monkeypatch, name, end):
    out = tmp_path / "results"
    with monkeypatch.context() as patch:
        patch.setattr(trainings, name, end)
        with pytest.raises(SystemExit):
            experiment(mine, data, out, *ONE)
    assert experiment(mine, data, out, *ONE) == 0
    (found,) = read_results(out)
    (whole,) = (x for x in read_results(made / "results") if x.config_hash == found.config_hash)
    assert (found.auc, found.best_epoch, found.epochs) == (whole.auc, whole.best_epoch, 1)
    assert not list(out.glob("runs/*/checkpoints"))


def test_a_path_that_sounds_like_divergence_is_none(mine, data, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise InputError("runs-diverged/runs: damaged checkpoint")

    monkeypatch.setattr(trainings, "train", refused)
    assert experiment(mine, data, tmp_path / "results", "--seeds", "1") == 2
    assert read_results(tmp_path / "results") == []


def test_a_figure_by_epoch_needs_the_run_folders(data, copied, tmp_path, capsys):
    """With some of them gone it would be half empty, with all of them an empty picture."""
    own = tmp_path / "curves.yaml"
    own.write_text(MINE.replace("title:", "kind: curves\ntitle:", 1))
    assert experiment(own, data, copied, *ONE) == 0
    drawn = (copied / "figures/curves.svg").read_bytes()
    shutil.rmtree(copied / "runs")
    assert experiment(own, data, copied, *ONE) == 2
    assert "metrics.csv: has 0 of 1 epochs" in capsys.readouterr().err
    assert (copied / "figures/curves.svg").read_bytes() == drawn


def test_a_dry_run_tells_what_it_trains_and_trains_nothing(mine, data, tmp_path, capsys):
    lines = ["--lines", " no scaling ; CowClip", "--dry-run"]  # spaces do not matter
    assert experiment(mine, data, tmp_path / "results", *lines) == 0
    printed = capsys.readouterr().out
    assert "6 runs, about" in printed and "base batch 64, largest 256" in printed
    assert experiment("figure4", data, tmp_path / "results", "--dry-run") == 0
    assert "one training of" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


def test_the_device_is_chosen_before_anything_starts_tensorflow(mine, data, tmp_path, monkeypatch):
    done = []
    for name in ("choose_device", "build_optimizer"):
        monkeypatch.setattr(trainings, name, lambda *a, _name=name, **_: done.append((_name, *a)))
    assert experiment(mine, data, tmp_path / "results", "--dry-run") == 0
    assert done[0] == ("choose_device", "cpu") and done[1][0] == "build_optimizer"


def test_figures_are_of_the_share_of_the_rows_and_replace_none_of_another(
    data, tmp_path, monkeypatch, capsys
):
    seen, known = [], outputs.id_frequency_figure
    monkeypatch.setattr(
        outputs, "id_frequency_figure", lambda data: (seen.append(data), known(data))[1]
    )
    words = ["experiment", "figure3", "--data", str(data)]
    for out, scale in (("all", "1"), ("half", "1/2"), ("half", "1/2")):
        assert main([*words, "--out", str(tmp_path / out), "--scale", scale]) == 0
    whole, half, _ = (each.rows["train"] for each in seen)
    assert 0.4 * whole < half < 0.6 * whole
    for out, scale in (("all", "1/2"), ("half", "1"), ("half", "1/3")):
        file = tmp_path / out / "figures/figure3.json"
        before, left = file.read_bytes(), sorted((tmp_path / out).iterdir())
        assert main([*words, "--out", str(tmp_path / out), "--scale", scale]) == 2
        assert "figure3.json: is of other data" in capsys.readouterr().err
        assert (file.read_bytes(), sorted((tmp_path / out).iterdir())) == (before, left)


def test_diverged_runs_are_results_without_a_figure(data, tmp_path, capsys):
    line = "{label: a, rule: none, overrides: {dense_lr: 1e30}, multipliers: [1]}"
    for kind in ("runs", "curves", "time"):  # the run of the first one serves all three
        own = tmp_path / f"{kind}.yaml"
        own.write_text(f"title: t\nclaim: c\nkind: {kind}\nlines: [{line}]")
        assert experiment(own, data, tmp_path / "results", "--seeds", "1") == 0
        printed = capsys.readouterr().out
        assert "no figure: every run diverged" in printed or kind == "runs"
        assert "diverged" in printed
    assert [r.status for r in read_results(tmp_path / "results")] == ["diverged"]


def test_the_command_takes_the_same_share_of_the_rows(data, tmp_path):
    made = DataSession(DataSettings(data=data, out=tmp_path, scale=1 / 3))
    words = made.command(load_experiment("table2")).split()
    assert parse_fraction(words[words.index("--scale") + 1]) == 1 / 3


def test_list(capsys):
    assert main(["experiment", "--list"]) == 0
    assert "table12" in capsys.readouterr().out


def test_verdicts_need_two_seeds_and_a_difference():
    small = mean_cell([80.0, 80.1, 79.9])
    for cell, word in (
        (mean_cell([80.05, 80.0, 79.95]), "noise"),
        (mean_cell([79.0, 79.1, 78.9]), "worse"),
        (mean_cell([81.0, 81.1, 80.9]), "better"),
        (mean_cell([81.0]), ""),
    ):
        assert verdict(cell, small) == word
    faster = mean_cell([0.4, 0.41]), mean_cell([0.5, 0.51])
    assert verdict(*faster, higher_is_better=False) == "better"


def test_the_printed_table_shows_signs_and_names_them(mine, data, copied):
    write_results(copied, [result for result in read_results(copied) if result.rule == "none"])
    assert experiment(mine, data, copied, "--lines", "no scaling") == 0
    text = table_text(read_table(copied / "tables/mine.json"))
    assert "against no scaling at batch 64" in text
    assert "not run" in text.splitlines()[-2] + text.splitlines()[-1]
    signs = [Cell(mean=1.0, runs=2, verdict=v) for v in ("better", "worse", "noise", "")]
    made = Table(
        name="t", title="T", claim="", unit="%", corner="", columns=("a", "b", "c", "d"),
        rows=(("line", tuple(signs)),), reference="d",
    )  # fmt: skip
    (line,) = [each for each in table_text(made).splitlines() if each.startswith("line")]
    assert [cell[-1] for cell in line.split()[1:]] == ["+", "-", "=", "0"]
    plain = Table(
        name="t", title="T", claim="", unit="rates", corner="", columns=("1K",),
        rows=(("a", (Cell(text="1e-4"),)),), reference="a at batch 1",
    )  # fmt: skip
    assert table_text(plain).splitlines()[-1] == "rates"
    number = Cell(mean=1.0, spread=0.5, runs=3, published=2.0, verdict="noise")
    text = table_text(replace(plain, rows=(("a", (number,)),)))
    assert "rates; mean ± standard deviation over seeds; [published]; against a at batch 1:" in text


def test_a_folder_that_another_process_has_or_that_cannot_be_written(
    mine, data, tmp_path, capsys, monkeypatch
):
    def touch(path, *arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    out = tmp_path / "results"
    with lock_folder(out, "taken"):
        assert experiment(mine, data, out) == 2
    assert "results: another experiment" in capsys.readouterr().err
    monkeypatch.setattr(Path, "touch", touch)
    assert experiment(mine, data, out) == 2
    assert "results.csv: cannot be written (Read-only" in capsys.readouterr().err
    assert not list(out.iterdir())


def test_a_figure_of_ids_without_ids(log, tmp_path, capsys, recwarn):
    data = tmp_path / "data"
    prepare = ["prepare", "criteo", str(log), "--out", str(data), "--freq-threshold", "1000000"]
    assert main(prepare) == 0
    assert experiment("figure3", data, tmp_path / "results") == 2
    assert f"{data}: every id is missing" in capsys.readouterr().err
    assert not [str(each.message) for each in recwarn.list if "legend" in str(each.message)]
