"""`cowclip fit` and `cc.fit`: the guess, the two commands that do the same, and the comparison."""

import re
import shlex

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import cowclip_merlin as cc
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.workflows import PreparedData

pytestmark = pytest.mark.runs
FEW = {"epochs": 2, "mlp": (8,), "random_state": 1}


def metrics(run):
    found = pd.read_csv(run / "metrics.csv")
    return found[[name for name in found if "seconds" not in name and "rows" not in name]]


def test_the_two_commands_that_it_prints_do_the_same(log, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(log.parent)
    options = ["--epochs", "2", "--mlp", "8", "--seed", "3", "--ignore", "country"]
    run = tmp_path / "RUN"
    assert main(["fit", "log.csv", "--label", "click", "--out", str(run), *options]) == 0
    printed = capsys.readouterr().out
    commands = [shlex.split(x)[1:] for x in re.findall(r"^  (cowclip \w+ .*)$", printed, re.M)]
    other = tmp_path / "RUN-run"
    for command in commands:
        assert main(command) == 0
    pd.testing.assert_frame_equal(metrics(other), metrics(run))
    files = [PreparedData.load(each) for each in (run / "data", f"{run}-data")]
    assert files[0].fingerprint == files[1].fingerprint and "country" not in files[0].categorical
    assert re.search(
        r"^row +left out +nearly one value a row: 1,200 values in 1,200", printed, re.M
    )
    assert re.search(r"^deepfm +0\.\d{4} ± 0\.\d{4} +0\.\d{4}$", printed, re.M)
    assert re.search(r"^AUC lost if a column is shuffled: (user|item_id) 0\.\d", printed, re.M)
    assert f"to score new rows: cowclip score {run} NEW --out scores.csv" in printed


def test_refit_trains_again_on_all_rows(log, tmp_path, capsys):
    run = tmp_path / "RUN"
    words = ["--mlp", "8", "--epochs", "3", "--seed", "3", "--refit"]
    assert main(["fit", str(log), "--label", "click", "--out", str(run), *words]) == 0
    printed = capsys.readouterr().out
    for command in re.findall(r"^  (cowclip \w+ .*)$", printed, re.M):
        assert main(shlex.split(command)[1:]) == 0
    pd.testing.assert_frame_equal(metrics(tmp_path / "RUN-run"), metrics(run))
    held_out = pd.read_csv(run / "held_out.csv")
    assert len(metrics(run)) == held_out["validation_auc"].argmax() + 1
    assert "test_auc" in metrics(run) and len(cc.score(run, log)) == 1200


def test_overwrite_replaces_a_fitted_run_and_nothing_else(log, tmp_path, capsys):
    run, small = tmp_path / "RUN", ["--mlp", "4", "--epochs", "1"]
    fit = ["fit", str(log), "--label", "click", "--out", str(run), *small]
    assert main(fit) == 0
    data = (run / "data/dataset.json").stat()
    train = ["train", str(run / "data"), "--out", str(run), "--model", "dcn", *small]
    assert main([*train, "--overwrite"]) == 0
    assert RunConfig.load(run).settings.model == "dcn"
    assert (run / "data/dataset.json").stat().st_ino == data.st_ino
    assert main([*fit, "--overwrite", "--ignore", "nobody"]) == 2
    assert RunConfig.load(run).settings.model == "dcn"
    assert (run / "data/dataset.json").stat().st_ino == data.st_ino
    assert main([*fit, "--overwrite", "--ignore", "country"]) == 0
    assert RunConfig.load(run).settings.model == "deepfm"
    assert "country" not in PreparedData.load(run / "data").categorical
    (run / "notes.txt").touch()
    for command in (fit, train):
        assert main([*command, "--overwrite"]) == 2
        assert "holds 'notes.txt'" in capsys.readouterr().err
    assert [x.name for x in tmp_path.iterdir()] == ["RUN"]


def test_files_and_frames_of_all_kinds_give_the_same_run(rows, log, tmp_path, capsys):
    fitted = cc.fit(log, "click", out=tmp_path / "CSV", **FEW)
    assert "the same in two commands" in capsys.readouterr().out
    lists = rows.assign(
        tags=[each.split("|") if each else [] for each in rows["tags"]],
        date=pd.to_datetime(rows["date"]),
    )
    for name, given in (("LISTS", lists), ("DICTS", rows.to_dict("records"))):
        other = cc.fit(given, "click", out=tmp_path / name, verbose=False, **FEW)
        pd.testing.assert_frame_equal(metrics(tmp_path / name), metrics(tmp_path / "CSV"))
        assert other.report_.guess.settings == fitted.report_.guess.settings
        np.testing.assert_array_equal(other.predict_proba(lists), fitted.predict_proba(rows))
    assert capsys.readouterr().out == ""
    np.testing.assert_array_equal(cc.score(tmp_path / "CSV", log), fitted.predict_proba(log)[:, 1])
    moved = (tmp_path / "CSV").rename(tmp_path / "MOVED")
    np.testing.assert_array_equal(cc.score(moved, log), cc.score(tmp_path / "LISTS", log))
    assert cc.load(moved).score(rows, rows["click"]) > 0.6


def one_hot(data, split):
    """The columns of a prepared folder as scikit-learn would have them, and the labels."""
    rows = pd.concat(map(pd.read_parquet, data.files(split)))
    parts = [rows[[*data.continuous]].to_numpy(float)]
    for name in data.categorical:
        found = np.zeros((len(rows), data.cardinalities[name]))
        for i, ids in enumerate(rows[name]):
            for each in np.atleast_1d(ids):
                found[i, each] += 1 / np.size(ids)
        parts.append(found)
    weights = rows[data.log_format.weight] if data.log_format.weight else np.ones(len(rows))
    return np.hstack(parts), rows[data.label].to_numpy(), np.asarray(weights, float)


@pytest.mark.parametrize("weight", [None, "w"])
def test_the_baselines_are_those_of_scikit_learn(rows, tmp_path, monkeypatch, weight):
    monkeypatch.setattr("cowclip_merlin.fitting.baselines._PART", 50)
    some = np.random.default_rng(1)
    given = rows.assign(w=some.choice([0.0, 0.5, 3.0], len(rows)))
    out = tmp_path / "RUN"
    found = cc.fit(given, "click", out=out, weight=weight, verbose=False, **FEW).report_
    data = PreparedData.load(out / "data")
    (x, y, w), (x_test, y_test, w_test) = (one_hot(data, split) for split in ("train", "test"))
    model = LogisticRegression(C=1, tol=1e-8, max_iter=2000).fit(x, y, sample_weight=w)
    constant = np.full(len(y_test), np.average(y, weights=w))
    for each, scores in zip(found.baselines, (constant, model.predict_proba(x_test)[:, 1])):
        wanted = roc_auc_score(y_test, scores, sample_weight=w_test)
        assert each.auc == pytest.approx(wanted, abs=2e-3), each.name
        wanted = log_loss(y_test, scores, sample_weight=w_test)
        assert each.log_loss == pytest.approx(wanted, abs=1e-3), each.name
    assert found.baselines[0].auc == 0.5 and "logistic regression" in str(found)
    assert found.columns.attrs["auc"] == pytest.approx(found.test.auc)


def test_train_takes_frames(rows, tmp_path):
    settings = cc.training.RunSettings(model="dcn", batch_size=64, epochs=1, mlp=(4,))
    records = cc.training.train(rows, settings, label="click", out=tmp_path / "RUN")
    assert records[-1]["test_auc"] > 0.4
    assert len(cc.score(tmp_path / "RUN", rows)) == len(rows)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r, out: cc.training.train(r, out=out), "give `label`, too"),
        (lambda r, out: cc.training.train("DATA", out=out, label="y"), "as `data` rows in memory"),
        (lambda r, out: cc.training.train(r, out=out, label="click", resume=True), "resume` takes"),
        (lambda r, out: cc.fit(r, "clik", out=out), "no column 'clik', but 'click', 'row', "),
        (lambda r, out: cc.fit(r[:0], "click", out=out), "the frame has no rows"),
        (lambda r, out: cc.fit(r, "click", out=out, model="fm"), "fm"),
        (lambda r, out: cc.fit(r, "click", out=out, time="user"), r"frame:1: user is \d+, no time"),
        (lambda r, out: cc.fit(r.assign(click=1), "click", out=out), "no row has label 0"),
        (lambda r, out: cc.fit(r[["click", "price"]], "click", out=out), "looks like ids"),
        (lambda r, out: cc.fit(r.rename(columns={"user": 3}), "click", out=out), "a column 3;"),
    ],
)  # fmt: skip
def test_wrong_input_is_refused_and_leaves_nothing(rows, tmp_path, call, words):
    with pytest.raises(InputError, match=words):
        call(rows, tmp_path / "RUN")
    assert not (tmp_path / "RUN").exists()
