"""What a run has learned: its model in Python, and its SavedModel in a program without us."""

import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pandas
import pytest
from tiers import thorough

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics import auc_difference, auc_standard_error, grouped_auc
from cowclip_merlin.training import (
    RunSettings,
    evaluate_run,
    evaluation,
    export_run,
    input_columns,
    load_run,
    train,
)
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.training.scoring import predicting
from cowclip_merlin.workflows import PreparedData

SMALL = {"mlp": (16, 8), "batch_size": 256, "base_batch_size": 64, "epochs": 1}
KINDS = {
    "deepfm": {"update": "exact"},
    "dcnv2": {"tables": "per_field", "precision": "bfloat16"},
}
OUTSIDE = """
import sys
import pandas
import tensorflow as tf

score = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
rows = pandas.read_parquet("inputs.parquet")
kinds = {name: tf.int64 if rows[name].dtype == "int64" else tf.float32 for name in rows}
given = {name: tf.constant(rows[name].to_numpy(), kind) for name, kind in kinds.items()}
assert "cowclip_merlin" not in sys.modules
got = score(**given)["probability"].numpy()
pandas.DataFrame({"probability": got}).to_parquet("got.parquet")
"""


@pytest.fixture(scope="module", params=["deepfm", thorough("dcnv2")])
def run(request, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    train(data, RunSettings(model=request.param, **SMALL, **KINDS[request.param]), out=folder / "r")
    return folder / "r"


@pytest.fixture(scope="module")
def exported(run, data, tmp_path_factory):
    """What `export_run` gave, and the folder that it made."""
    out = tmp_path_factory.mktemp("exported") / "MODEL"
    return export_run(run, data, out=out), out


@pytest.fixture(scope="module")
def rows(data):
    prepared = PreparedData.load(data)
    columns = [*prepared.categorical, *prepared.continuous]
    table = pandas.concat(map(pandas.read_parquet, prepared.files("test")))[columns]
    return table.astype(dict.fromkeys(prepared.categorical, "int64")).reset_index(drop=True)


def scores_of(run, data, tmp_path):
    evaluate_run(run, data, predictions=tmp_path / "p.parquet", overwrite=True)
    return pandas.read_parquet(tmp_path / "p.parquet").probability.to_numpy()


@pytest.mark.one_case
def test_a_loaded_run_scores_as_evaluate_does(run, data, rows, tmp_path):
    model = load_run(run, data)
    got = model.predict({name: rows[name].to_numpy() for name in rows}, batch_size=512, verbose=0)
    np.testing.assert_allclose(got[:, 0], scores_of(run, data, tmp_path), atol=1e-6)


@pytest.mark.parametrize("run", ["deepfm"], indirect=True)
def test_two_runs_are_compared(run, data, tmp_path, capsys):
    config = RunConfig.load(run).settings
    train(data, replace(config, seed=2), out=tmp_path / "other")
    scores = [scores_of(folder, data, tmp_path) for folder in (run, tmp_path / "other")]
    labels = pandas.read_parquet(tmp_path / "p.parquet").label
    value, error = auc_difference(labels, *scores)
    result = evaluate_run(run, data, against=tmp_path / "other")
    assert (result.difference.value, result.difference.error) == (value, error)
    assert result.auc_error == auc_standard_error(labels, scores[0]) and error > 0
    capsys.readouterr()
    for pair in ([run, tmp_path / "other"], [tmp_path / "other", run]):
        assert main(["evaluate", str(pair[0]), str(data), "--against", str(pair[1])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f" (standard error {result.auc_error:.6f}), log loss" in lines[0]
    sides = ("below", "above") if value < 0 else ("above", "below")
    for line, side in zip((lines[1], lines[3]), sides, strict=True):
        assert line.startswith(f"AUC {abs(value):.6f} {side} that of ")
        assert line.endswith(f" (standard error {error:.6f})")


def test_the_auc_by_the_ids_of_a_column(run, data, tmp_path, capsys):
    field = PreparedData.load(data).categorical[0]
    rows = pandas.concat(map(pandas.read_parquet, sorted((data / "test").glob("*.parquet"))))
    ids, scores = rows[field].to_numpy(), scores_of(run, data, tmp_path)
    labels = pandas.read_parquet(tmp_path / "p.parquet").label.to_numpy()
    by = evaluate_run(run, data, by=field).by
    known = ids > 2  # 0 to 2: padding, missing, new or rare
    assert by.unknown_rows == (~known).sum()
    assert by.grouped == grouped_auc(labels[known], scores[known], ids[known])
    assert 0 < by.grouped.rows <= known.sum()
    capsys.readouterr()
    assert main(["evaluate", str(run), str(data), "--by", field]) == 0
    assert f"AUC by {field} {by.grouped.auc:.6f}: " in capsys.readouterr().out


def test_a_column_without_known_ids_has_no_auc():
    with pytest.raises(InputError, match="user: no row has a known value"):
        evaluation.auc_by_column("user", np.array([1, 2]), np.array([0, 1]), np.array([0.1, 0.2]))


def test_ids_that_stand_for_other_values_are_refused(tmp_path, monkeypatch):
    """Before any row is scored."""
    first = prepared_table(tmp_path, "first", ["cook", "guard", "nurse"])
    other = prepared_table(tmp_path, "other", ["cook", "guard", "pilot"])
    like = prepared_table(tmp_path, "like", ["cook", "nurse", "pilot"], "--like", str(first))
    for name, folder in (("mine", first), ("theirs", other)):
        settings = RunSettings(model="deepfm", **SMALL | {"batch_size": 64})
        train(folder, settings, out=tmp_path / name)
    assert evaluate_run(tmp_path / "mine", like).rows == 300
    monkeypatch.setattr(predicting.Predictor, "predict", None)
    for use in (evaluate_run, load_run):
        with pytest.raises(InputError, match=r"other: its ids .* prepare it with `like`"):
            use(tmp_path / "mine", other)
    with pytest.raises(InputError, match=r"first: its ids .* of .*theirs; prepare it with `like`"):
        evaluate_run(tmp_path / "mine", first, against=tmp_path / "theirs")


def test_one_click_has_no_standard_error(run, tmp_path, capsys, monkeypatch):
    result = evaluation.evaluate([0, 1, 0], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    monkeypatch.setattr("cowclip_merlin.training.evaluate_run", lambda *_, **__: result)
    assert main(["evaluate", "RUN", "DATA", "--against", "OTHER"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "(no standard error: a class has one row)" in first and "nan" not in first + second
    assert second == "the same AUC as OTHER (no standard error: a class has one row)"


@pytest.mark.parametrize("run", ["deepfm"], indirect=True)
@pytest.mark.parametrize("label", [0, 1])
def test_rows_of_one_label_are_scored_without_an_auc(run, folder, tmp_path, capsys, label):
    for file in folder.files("test"):
        pandas.read_parquet(file).assign(label=np.int8(label)).to_parquet(file)
    scores, rows = tmp_path / "p.parquet", folder.rows["test"]
    assert main(["evaluate", str(run), str(folder.path), "--predictions", str(scores)]) == 0
    table = pandas.read_parquet(scores)
    assert table.label.tolist() == [label] * rows
    loss = -np.log(table.probability if label else 1 - table.probability).mean()
    calibration = f"{table.probability.mean():.6f}" if label else "-"
    assert capsys.readouterr().out.splitlines() == [
        f"test: {rows:,} rows, AUC - (all rows have the same label), log loss {loss:.6f}, "
        f"normalized entropy -, calibration {calibration}",
        f"predictions: {scores}",
    ]


@pytest.mark.one_case
@pytest.mark.system
def test_an_exported_run_scores_without_this_package(run, exported, data, rows, tmp_path):
    inputs, model = exported
    assert list(inputs) == list(rows) and not list(model.parent.glob(".*"))
    assert b"PyFunc" not in (model / "saved_model.pb").read_bytes()
    rows.to_parquet(tmp_path / "inputs.parquet")
    command = [sys.executable, "-c", OUTSIDE, str(model)]
    subprocess.run(command, cwd=tmp_path, check=True)
    got = pandas.read_parquet(tmp_path / "got.parquet").probability
    expected = scores_of(run, data, tmp_path)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    again = cc.load_model(str(model))
    given = {name: rows[name].to_numpy() for name in rows}
    np.testing.assert_allclose(
        again.predict(given, batch_size=512, verbose=0)[:, 0], expected, atol=1e-6
    )


@pytest.mark.parametrize("run", ["deepfm"], indirect=True)
def test_an_id_outside_of_its_table_is_named(exported, data, rows):
    tf, (_, model) = compat.tensorflow(), exported
    score = tf.saved_model.load(str(model)).signatures["serving_default"]
    given = {name: tf.constant(rows[name][:3]) for name in rows}
    largest = PreparedData.load(data).cardinalities["C3"]
    for wrong in (-1, largest):
        words = f"column C3 has the id {wrong}, but its table has the ids 0 to {largest - 1};"
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            score(**given | {"C3": tf.constant([1, wrong, 2], tf.int64)})
    score(**given | {"C3": tf.constant([1, largest - 1, 2], tf.int64)})


@pytest.mark.one_case
@pytest.mark.parametrize("run", ["deepfm"], indirect=True)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_refused_with_its_column(run, exported, data, rows, number):
    tf, (_, path) = compat.tensorflow(), exported
    given = {name: rows[name].to_numpy()[:3] for name in rows}
    given["I4"] = np.array([0.5, number, 0.5], np.float32)
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    kinds = {name: tf.int64 if name[0] == "C" else tf.float32 for name in given}
    ways = [lambda: served(**{name: tf.constant(given[name], kinds[name]) for name in given})]
    for model in (cc.load_model(str(path)), load_run(run, data)):
        ways += [lambda model=model: model.predict(given, verbose=0)]
        ways += [lambda model=model: model({n: tf.constant(given[n], kinds[n]) for n in given})]
    for score in ways:
        with pytest.raises(tf.errors.InvalidArgumentError, match="column 'I4' has a number that"):
            score()


def prepared_table(tmp_path, name, jobs, *more):
    """Folders whose ids are as many, for other values."""
    lines = [f"{i % 2},{jobs[i % 3]},{i % 5}" for i in range(300)]
    (tmp_path / f"{name}.csv").write_text("\n".join(["y,job,age", *lines]) + "\n")
    out = tmp_path / name
    what = ["--label", "y", "--categorical", "job", "--continuous", "age"]
    command = ["prepare", "table", str(tmp_path / f"{name}.csv"), "--out", str(out), *more]
    assert main(command if "--like" in more else command + what) == 0
    return out


@pytest.mark.parametrize("text", ["[1]", "{}", '{"inputs": 3}'])
def test_columns_of_a_model_that_were_edited(tmp_path, text):
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "assets.extra/columns.json").write_text(text)
    with pytest.raises(InputError, match=r"columns\.json: names no inputs; export the run again"):
        input_columns(tmp_path)


@pytest.mark.runs
def test_a_model_worse_than_a_constant_is_told(data, tmp_path, capsys, caplog):
    """With rates far too large, at each door: train, evaluate, load, score and export."""
    settings = RunSettings(model="deepfm", **SMALL, overrides={"dense_lr": 1.0}, rule="none")
    (row,) = train(data, settings, out=tmp_path / "bad")
    assert row["test_normalized_entropy"] > 1
    words = "scores the test rows worse than always answering the click rate"
    told = (tmp_path / "bad" / "train.log").read_text()
    assert words in told
    assert "11 steps per epoch: the batch is too large for 2,696 rows; 16 would make 169" in told
    assert main(["evaluate", str(tmp_path / "bad"), str(data)]) == 0
    assert "(worse than always answering the click rate)" in capsys.readouterr().out
    for door in (load_run, cc.training.Scorer, partial(export_run, out=tmp_path / "MODEL")):
        caplog.clear()
        door(tmp_path / "bad", data)
        assert words in caplog.text
    (tmp_path / "bad" / "metrics.csv").write_text("epoch\nx\n")
    caplog.clear()
    load_run(tmp_path / "bad", data)
    assert words not in caplog.text
