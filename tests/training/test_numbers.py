"""A label that is a number, alone or before one of 0 and 1: from the log to each served model."""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from one_step import check_that_two_workers_equal_one, gradients

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import DeviceData, StreamedData, open_columns
from cowclip_merlin.models import Columns
from cowclip_merlin.online import OnlineSettings
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.run_config import features_of_json, online_config
from cowclip_merlin.online.training.start import OfflineStart
from cowclip_merlin.online.training.trainer import log_schema
from cowclip_merlin.targets import targets_of
from cowclip_merlin.training import RunSettings, evaluate_run, export_run, train
from cowclip_merlin.training.build import build_model
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

pytestmark = pytest.mark.runs
RUN = RunSettings(
    model="deepfm", mlp=(8,), batch_size=64, base_batch_size=64, epochs=3, embedding_dim=4,
    overrides={"dense_lr": 0.01, "embedding_lr": 0.01},
)  # fmt: skip


def table():
    """The price depends on the user, with noise of 0.1."""
    rng = np.random.default_rng(5)
    user, age = rng.integers(0, 20, 1500), rng.random(1500)
    price = user / 10 + age + rng.normal(size=1500) / 10
    buy = (rng.random(1500) < 0.3).astype(int)
    w = rng.integers(0, 3, 1500)
    return pd.DataFrame({"user": user, "age": age, "price": price, "buy": buy, "w": w})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    table().to_csv(folder / "log.csv", index=False)
    given = {"kind": "table", "categorical": ("user",), "continuous": ("age",)}
    given |= {"files": (folder / "log.csv",), "regression": ("price",)}
    prepare(PrepareSettings(out=folder / "DATA", label="price", weight="w", **given))
    prepare(PrepareSettings(out=folder / "BOTH", label=("price", "buy"), **given))
    return folder


@pytest.fixture(scope="module")
def rows(folder):
    return train(folder / "DATA", RUN, out=folder / "RUN")


def rmse(labels, values, weights=None):
    return np.sqrt(np.average((np.asarray(labels) - values) ** 2, weights=weights))


def test_a_prepared_folder_has_the_numbers(folder):
    data = PreparedData.load(folder / "DATA")
    assert data.clicks == 0 and sum(data.rows.values()) == 1500
    found = np.concatenate([open_columns(data, split).label for split in ("train", "test")])
    np.testing.assert_array_equal(np.sort(found[:, 0]), np.sort(table().price.astype("f4")))
    assert "label price: 1,500 rows, mean 1." in (folder / "DATA" / "summary.md").read_text()


def test_the_loss_is_the_squared_error(folder, monkeypatch):
    data = PreparedData.load(folder / "DATA")
    model, columns = (
        build_model(RUN, RUN.hyperparameters("criteo"), data),
        open_columns(data, "train"),
    )
    batch = np.arange(50)
    kinds = DeviceData(columns), StreamedData(columns, memory=20_000)
    first, second = (next(iter(k.batches(64, seed=1, epoch=0))) for k in kinds)
    np.testing.assert_array_equal(*(k.unpack(b).labels for k, b in zip(kinds, (first, second))))
    z = cc.models.logits(model, kinds[0].unpack(batch)).numpy().astype(float)
    y, w = columns.label[batch], columns.weight[batch]
    found, loss = gradients(model, columns, batch)
    mean, spread = model.blocks[0].columns.scales["price"]
    assert abs(z.mean() - mean) < spread / 2 < 1
    assert loss == pytest.approx((w[:, None] * ((z - y) / spread) ** 2).sum(), rel=1e-5)
    biases = [g for g, x in zip(found, model.trainable_variables) if x.shape == (1,)]
    expected = (2 * w[:, None] * (z - y) / spread).sum() / w.sum()
    assert min(abs(g[0] - expected) for g in biases) < 1e-5
    check_that_two_workers_equal_one(model, columns, monkeypatch)


def test_a_run_learns_and_all_ways_score_alike(folder, rows, tmp_path):
    file = tmp_path / "p.parquet"
    result = evaluate_run(folder / "RUN", folder / "DATA", predictions=file)
    found = pd.read_parquet(file)
    test = open_columns(PreparedData.load(folder / "DATA"), "test")
    expected = rmse(found.label, found.prediction, test.weight)
    assert result.rmse == rows[-1]["test_price_rmse"] == pytest.approx(expected)
    assert rows[-1]["test_price_rmse"] < rows[0]["test_price_rmse"]
    assert expected < 0.7 * rmse(found.label, found.label.mean(), test.weight)
    assert not [name for name in rows[0] if "auc" in name or "log_loss" in name]
    scores = cc.score(folder / "RUN", table().drop(columns=["price", "w"]))
    assert scores.shape == (1500, 1) and np.isin(found.prediction, scores[:, 0]).all()
    out = str(tmp_path / "s.parquet")
    assert main(["score", str(folder / "RUN"), str(folder / "log.csv"), "--out", out]) == 0
    np.testing.assert_array_equal(pd.read_parquet(out).prediction, scores[:, 0])
    for how in ({"update": "exact"}, {"tables": "per_field"}, {"multi_task": "shared_bottom"}):
        other = train(folder / "DATA", replace(RUN, **how), out=tmp_path / str(how))
        assert other[-1]["test_price_rmse"] == pytest.approx(rows[-1]["test_price_rmse"], abs=1e-4)


def test_an_exported_run_predicts_the_number(folder, rows, tmp_path, monkeypatch):
    sys.path.append(str(Path(__file__).parents[1] / "serving" / "triton"))
    import served

    tf = compat.tensorflow()
    evaluate_run(folder / "RUN", folder / "DATA", predictions=tmp_path / "p.parquet")
    expected = pd.read_parquet(tmp_path / "p.parquet").prediction
    export_run(folder / "RUN", folder / "DATA", out=tmp_path / "MODEL")
    model = tf.saved_model.load(str(tmp_path / "MODEL")).signatures["serving_default"]
    test = open_columns(PreparedData.load(folder / "DATA"), "test")
    ids = tf.constant(test.ids[:, 0], tf.int64)
    found = model(user=ids, age=tf.constant(test.continuous[:, 0]))
    assert list(found) == ["prediction"]
    np.testing.assert_allclose(found["prediction"], expected, rtol=1e-5)
    repo = ["--out", str(tmp_path / "REPO"), "--triton"]
    assert main(["export", str(folder / "RUN"), str(folder / "DATA"), *repo]) == 0
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", None)
    raw = table().assign(user=table().user.astype(str)).to_dict("records")
    ((answer,),) = served.serve(tmp_path / "REPO" / "ctr", "1", [[raw]])
    np.testing.assert_allclose(
        answer["prediction"], cc.score(folder / "RUN", table())[:, 0], atol=1e-5
    )


def test_early_stopping_keeps_the_epoch_with_the_lowest_error(folder, tmp_path, capsys):
    words = ["--model", "deepfm", "--batch-size", "64", "--mlp", "8", "--epochs", "9"]
    words += ["--validation-fraction", "0.3", "--early-stopping", "1", "--dense-lr", "0.3"]
    run, data = str(tmp_path / "RUN"), str(folder / "BOTH")
    assert main(["train", data, "--out", run, *words]) == 0
    with (tmp_path / "RUN" / "metrics.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    errors = [float(row["validation_price_rmse"]) for row in written]
    best = 1 + int(np.argmin(errors))
    said = capsys.readouterr().out
    assert f"epoch {best} of {len(errors)} (best on validation rows)" in said
    assert f"validation price RMSE {min(errors):.5f}, buy AUC 0." in said
    assert not written[0]["validation_auc"] and not (tmp_path / "RUN" / "reliability.csv").exists()
    assert main(["evaluate", run, data, "--by", "user"]) == 0
    said = capsys.readouterr().out
    assert "test price: 1" in said and "AUC by user" in said


@pytest.mark.thorough
def test_a_resumed_run_ends_as_one_that_was_never_stopped(folder, rows, tmp_path, capsys):
    train(folder / "DATA", replace(RUN, epochs=1), out=tmp_path / "RUN", diagnostics_every=5)
    again = train(folder / "DATA", RUN, out=tmp_path / "RUN", resume=True)
    assert again[-1]["test_price_rmse"] == rows[-1]["test_price_rmse"]
    config = json.loads((tmp_path / "RUN" / "config.json").read_text())
    assert config["data_targets"] == {"price": "regression"}
    more = replace(RUN, epochs=1)
    train(folder / "DATA", more, out=tmp_path / "ON", warm_start=tmp_path / "RUN")
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "RUN")]) == 0
    assert "test price RMSE" in capsys.readouterr().out


def test_what_needs_a_label_of_0_and_1_is_refused(folder, rows, tmp_path, capsys):
    data, run = str(folder / "DATA"), str(folder / "RUN")
    for words, message in (
        (["evaluate", run, data, "--by", "user"], "--by compares AUCs"),
        (["evaluate", run, data, "--against", run], "--against compares AUCs"),
        (["experiment", "table2", "--data", data, "--out", str(tmp_path / "E")], "'price' is"),
        (["tune", data, "--model", "dcn", "--batch-size", "64", "--out", str(tmp_path / "T")],
         "a search follows the AUC of the first label, but 'price' is a number"),
        (["train", data, "--model", "dcn", "--batch-size", "64", "--out", str(tmp_path / "C"),
          "--class-weight", "balanced"], "--class-weight takes one label of 0 and 1"),
        (["train", data, "--model", "dcn", "--batch-size", "64", "--out", str(tmp_path / "M"),
          "--multi-task", "mmoe"], "--multi-task mmoe has no effect with one label"),
    ):  # fmt: skip
        assert main(words) == 2
        assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    trainer = SimpleNamespace(features=SimpleNamespace(targets=targets_of(("click",), ())))
    with pytest.raises(InputError, match="name the same `label` and `regression`"):
        OfflineStart(folder / "RUN", folder / "DATA", trainer)


def test_rows_without_the_number_are_damaged(tmp_path, capsys):
    lines = ["price,user", *(f"{i / 7},u{i % 5}" for i in range(3000)), ",u1", "x,u2"]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    names = ["--label", "price", "--regression", "price", "--categorical", "user"]
    out = ["--out", str(tmp_path / "DATA")]
    assert main(["prepare", "table", str(tmp_path / "log.csv"), *out, *names]) == 0
    told = (tmp_path / "DATA" / "damaged" / "lines.tsv").read_text()
    assert "no label: price is missing" in told and "price is 'x', no label of a regression" in told


def test_the_unit_of_a_number_changes_nothing_else(tmp_path):
    """Seconds or milliseconds: 4096 times the number, but the same click scores to the bit."""
    given = {"kind": "table", "categorical": ("user",), "continuous": ("age",)}
    given |= {"label": ("buy", "price"), "regression": ("price",)}
    rows, found = table().round(6), {}
    for unit in (1, 4096):
        log, data, run = (tmp_path / f"{name}{unit}" for name in ("log", "DATA", "RUN"))
        rows.assign(price=rows.price.astype("f4") * unit).to_csv(log, index=False)
        prepare(PrepareSettings(files=(log,), out=data, **given))
        (row,) = train(data, replace(RUN, epochs=1), out=run)
        found[unit] = row, cc.score(run, table())
    (one, scores), (other, wide) = found.values()
    assert one["test_buy_auc"] == other["test_buy_auc"]
    assert other["test_price_rmse"] == pytest.approx(4096 * one["test_price_rmse"])
    np.testing.assert_allclose(wide, scores * [1, 4096], rtol=1e-5)
    export_run(run, data, out=tmp_path / "MODEL")
    served = cc.load_model(str(tmp_path / "MODEL"))
    assert list(served.blocks[0].columns.scales) == ["price"]
    on = {"files": (tmp_path / "log4096",), "extend": tmp_path / "DATA1", "kind": "table"}
    kept = prepare(PrepareSettings(out=tmp_path / "ON", **on))
    assert kept.statistics.scales == PreparedData.load(tmp_path / "DATA1").statistics.scales
    with pytest.raises(InputError, match="another mean and spread"):
        train(tmp_path / "DATA4096", RUN, out=tmp_path / "X", warm_start=tmp_path / "RUN1")
    with pytest.raises(InputError, match="have other meanings"):
        evaluate_run(tmp_path / "RUN1", tmp_path / "DATA4096")
    features = SimpleNamespace(targets=kept.targets, scales={})
    with pytest.raises(InputError, match="write `prepared: FOLDER` into the features file"):
        OfflineStart(tmp_path / "RUN1", tmp_path / "DATA1", SimpleNamespace(features=features))
    (tmp_path / "f.yaml").write_text(
        "label: [buy, price]\nregression: price\ntime: time\nprepared: DATA1\n"
        "categorical: [{name: user}]\ncontinuous: [{name: age}]\n"
    )
    read = load_features(tmp_path / "f.yaml")
    written = json.loads(
        json.dumps(
            online_config(OnlineSettings(run=replace(RUN, update="lazy", epochs=1)), read)[
                "features"
            ]
        )
    )
    assert features_of_json(written) == read
    columns = Columns.from_schema(log_schema(read), rows=99, several=True)
    assert columns.scales == read.scales
    assert {n: tuple(x) for n, x in read.scales.items()} == kept.statistics.scales
