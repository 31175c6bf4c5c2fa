"""Experiments, sweeps and searches on data with several labels."""

import csv
import json
import random

import pytest
from small_experiment import experiment

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import RMSE
from cowclip_merlin.experiments.files import load_experiment
from cowclip_merlin.experiments.on_data.outputs import further_tables
from cowclip_merlin.experiments.results import example_result, read_results

pytestmark = pytest.mark.runs

MINE = """
title: Mine
claim: Nothing.
reference: [none, 1]
lines:
  - {label: none, rule: none, multipliers: [1], published: {1: 80.0}}
  - {label: CowClip, multipliers: [4]}
"""
SWEEP = """
kind: sweep
title: A sweep
claim: Nothing.
lines: [{label: CowClip, multipliers: [largest]}]
grid: {r: [1.0]}
"""
MMOE = ["--multi-task", "mmoe", "--experts", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """DATA with the labels click, buy (which some rows lack) and seconds."""
    folder, rng = tmp_path_factory.mktemp("labels"), random.Random(3)
    lines = ["click,buy it,seconds,user"]
    for _ in range(2000):
        user = rng.randrange(30)
        click = int(rng.random() < (user % 3 + 1) / 4)
        buy = "" if rng.random() < 0.2 else int(click and rng.random() < 0.5)
        lines.append(f"{click},{buy},{user / 10 + rng.random():.3f},u{user}")
    (folder / "log.csv").write_text("\n".join(lines))
    (folder / "mine.yaml").write_text(MINE)
    (folder / "sweep.yaml").write_text(SWEEP)
    words = ["--label", "click,buy it,seconds", "--regression", "seconds", "--categorical", "user"]
    out = ["--out", str(folder / "DATA")]
    assert main(["prepare", "table", str(folder / "log.csv"), *out, *words]) == 0
    return folder


def table(folder, name):
    return json.loads((folder / "tables" / f"{name}.json").read_text())


@pytest.mark.thorough
def test_an_experiment_has_a_table_for_each_label(folder, tmp_path):
    """Each cell is the mean over the runs of what their `metrics.csv` has after the last epoch."""
    small = (folder / "mine.yaml", folder / "DATA", tmp_path)
    assert experiment(*small, *MMOE, "--scale", "0.9") == 0
    tables = [table(tmp_path, name) for name in ("mine", "mine_label2", "mine_label3")]
    assert [each["unit"] for each in tables] == ["AUC %", "AUC %", "RMSE"]
    assert [each["title"] for each in tables[1:]] == ["Mine: label buy it", "Mine: label seconds"]
    columns = ("test_click_auc", "test_buy it_auc", "test_seconds_rmse")
    runs = [r for r in read_results(tmp_path) if r.clip == "cowclip"]
    for one, column, unit in zip(tables, columns, (100, 100, 1)):
        found = []
        for run in runs:
            file = tmp_path / "runs" / run.run_id / "metrics.csv"
            found.append(unit * float(list(csv.DictReader(file.open()))[-1][column]))
        (cell,) = [row[1][1] for row in one["rows"] if row[0] == "CowClip"]
        assert cell["mean"] == pytest.approx(sum(found) / 2, rel=1e-12) and cell["runs"] == 2
    assert tables[0]["rows"][0][1][0]["published"] == 80.0
    assert tables[1]["rows"][0][1][0]["published"] is None
    config = json.loads((tmp_path / "runs" / runs[0].run_id / "config.json").read_text())
    assert (config["settings"]["multi_task"], config["settings"]["experts"]) == ("mmoe", 2)
    assert "--multi-task mmoe --experts 2" in tables[0]["command"]
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0


@pytest.mark.thorough
def test_a_sweep_follows_the_first_label(folder, tmp_path, capsys):
    small = (folder / "sweep.yaml", folder / "DATA", tmp_path)
    options = ("--multi-task", "shared_bottom", "--seeds", "1")
    assert experiment(*small, *options, verb="sweep") == 0
    first, buy, seconds = (
        table(tmp_path, name) for name in ("sweep", "sweep_label2", "sweep_label3")
    )
    means = [cells[0]["mean"] for _, cells in first["rows"]]
    assert means == sorted(means, reverse=True) and seconds["unit"] == "validation RMSE"
    assert [row[0] for row in buy["rows"]] == [row[0] for row in first["rows"]]
    assert "to train with the best settings" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_search_follows_the_first_label(folder, tmp_path, capsys):
    pytest.importorskip("optuna")
    words = ["--model", "dcn", "--batch-size", "256", "--mlp", "8", "--epochs", "1", *MMOE]
    out = ["--trials", "2", "--out", str(tmp_path / "T")]
    assert main(["tune", str(folder / "DATA"), *words, *out]) == 0
    said = capsys.readouterr().out
    with (tmp_path / "T" / "trials.csv").open() as file:
        trials = list(csv.DictReader(file))
    best = max(trials, key=lambda row: float(row["validation_auc"]))
    for row in trials:
        assert row["validation_auc"] == row["validation_click_auc"]
        assert float(row["validation_seconds_rmse"]) > 0 < float(row["validation_buy it_auc"])
    assert f"seconds RMSE {float(best['validation_seconds_rmse']):.5f}" in said
    assert "multi_task: mmoe" in (tmp_path / "T" / "settings.yaml").read_text()


def test_layers_that_the_labels_cannot_have_are_refused(folder, tmp_path, capsys):
    small = (folder / "mine.yaml", folder / "DATA", tmp_path / "R")
    assert experiment(*small, "--multi-task", "esmm") == 2
    assert "esmm needs two labels of 0 and 1" in capsys.readouterr().err
    assert not (tmp_path / "R").exists()


def test_a_label_that_is_a_number_has_an_rmse():
    mine, scores = load_experiment("table2"), '{"a": {"auc": 0.5}, "b": {"rmse": 2.5}}'
    ((found, results),) = further_tables(mine, {"run": example_result(targets=scores)})
    assert (found.measure, results["run"].rmse) == (RMSE, 2.5)
    assert further_tables(mine, {"run": example_result()}) == []
    both = {i: example_result(targets=each) for i, each in enumerate((scores, '{"a": {}}'))}
    with pytest.raises(InputError, match="scores of different labels"):
        further_tables(mine, both)
