"""Weights of rows: loading, the loss of a step, runs and evaluation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from one_step import check_that_two_workers_equal_one, gradients

import cowclip_merlin as cc
from cowclip_merlin import compat, metrics
from cowclip_merlin.diagnostics.probe import make_probe
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    DeviceData,
    StreamedData,
    open_columns,
    train_validation_split,
)
from cowclip_merlin.loading.columns import read_columns
from cowclip_merlin.targets import Target
from cowclip_merlin.training import RunSettings, evaluate_run, train
from cowclip_merlin.training.build import build_model, build_optimizer
from cowclip_merlin.training.evaluation import check_targets_scored
from cowclip_merlin.training.train_step import make_train_step
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

SMALL = {"mlp": (8,), "batch_size": 64, "base_batch_size": 64, "epochs": 2, "embedding_dim": 4}
RUN = RunSettings(model="deepfm", **SMALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("weights"), np.random.default_rng(3)
    user, age = rng.integers(0, 40, 1200), rng.random(1200)
    y = (rng.random(1200) < 0.2 + 0.5 * (user % 2)).astype(int)
    rows = pd.DataFrame({"user": user, "age": age, "y": y, "w": rng.integers(0, 4, 1200) / 2})
    rows.to_csv(folder / "log.csv", index=False)
    columns = {"label": "y", "categorical": ("user",), "continuous": ("age",), "weight": "w"}
    settings = {"kind": "table", **columns}
    prepare(PrepareSettings(files=(folder / "log.csv",), out=folder / "DATA", **settings))
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return PreparedData.load(folder / "DATA")


@pytest.fixture(scope="module")
def columns(data):
    return open_columns(data, "train")


def test_weights_are_loaded(data, columns):
    expected = pd.concat(map(pd.read_parquet, data.files("train"))).w.to_numpy()
    for found in (columns, open_columns(data, "train"), read_columns(data, "train")):
        assert found.weight.dtype == np.float32
        np.testing.assert_array_equal(found.weight, expected)
    assert columns.bytes_per_row == replace(columns, weight=None).bytes_per_row + 4
    np.testing.assert_array_equal(columns.take(np.arange(5)).weight, expected[:5])


def test_streamed_batches_are_those_on_the_device(columns):
    kinds = DeviceData(columns), StreamedData(columns, memory=20_000)
    for pair in zip(*(each.batches(64, seed=1, epoch=2) for each in kinds), strict=True):
        first, second = (kind.unpack(batch) for kind, batch in zip(kinds, pair))
        np.testing.assert_array_equal(first.weights, second.weights)
        for kind, batch in zip(kinds, pair):
            part = kind.unpack(kind.part(batch, 3, 9))
            np.testing.assert_array_equal(part.weights, first.weights[3:9])
    assert DeviceData(replace(columns, weight=None)).unpack([0]).weights is None


@pytest.fixture(scope="module")
def model(data):
    return build_model(RUN, RUN.hyperparameters("criteo"), data)


def test_the_loss_is_the_weighted_mean(data, model, columns):
    """Against NumPy: the loss, and the gradients of the output's bias and of the users' rows."""
    rows = np.arange(50)
    batch = DeviceData(columns).unpack(rows)
    z = cc.models.logits(model, batch)[:, 0].numpy().astype(np.float64)
    w, y = columns.weight[rows].astype(np.float64), columns.label[rows]
    found, loss = gradients(model, columns, rows)
    assert loss == pytest.approx(np.sum(w * (np.logaddexp(0, z) - y * z)), rel=1e-5)
    parts = w * (1 / (1 + np.exp(-z)) - y) / w.sum()  # of the logits
    names = [x.name for x in model.trainable_variables]
    bias = [g for g, x in zip(found, model.trainable_variables) if x.shape == (1,)]
    assert any(g[0] == pytest.approx(parts.sum(), abs=1e-6) for g in bias), names
    wide = next(
        g
        for g, x in zip(found, model.trainable_variables)
        if x.shape[1:] == (1,) and "wide" in x.name
    )
    expected = np.bincount(columns.ids[rows, 0], weights=parts, minlength=len(wide))
    np.testing.assert_allclose(wide[:, 0], expected, atol=1e-6)


def test_a_row_of_weight_2_is_the_row_twice(model, columns):
    doubled = replace(columns, weight=np.where(np.arange(len(columns)) < 9, 2, 1).astype("f4"))
    once, loss = gradients(model, doubled, np.arange(20))
    equal = replace(columns, weight=None)
    twice, other = gradients(model, equal, [*range(20), *range(9)])
    assert loss == pytest.approx(other, rel=1e-6)
    for a, b in zip(once, twice):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_diagnostics_see_the_weighted_gradient(data, columns):
    values = RUN.hyperparameters("criteo")
    model = build_model(RUN, values, data)
    optimizer = build_optimizer(RUN, values, data, steps=9)
    cc.models.attach(model, optimizer)
    doubled = replace(columns, weight=np.where(np.arange(len(columns)) < 9, 2, 1).astype("f4"))
    found = make_probe(model, optimizer, DeviceData(doubled))(np.arange(20))
    equal = DeviceData(replace(columns, weight=None))
    expected = make_probe(model, optimizer, equal)(np.array([*range(20), *range(9)]))
    np.testing.assert_allclose(found.g_norm, expected.g_norm, rtol=1e-4)
    assert found.cnt.sum() == 20 and expected.cnt.sum() == 29


def test_workers_share_the_weighted_mean(model, columns, monkeypatch):
    """Each worker knows the weights of the whole batch; the optimizer takes the mean."""
    check_that_two_workers_equal_one(model, columns, monkeypatch)


@pytest.mark.parametrize("update", ["exact", "dense"])
def test_a_batch_of_weight_0_changes_nothing(data, columns, update):
    tf, settings = compat.tensorflow(), replace(RUN, update=update)
    values = settings.hyperparameters("criteo")
    model = build_model(settings, values, data)
    optimizer = build_optimizer(settings, values, data, steps=9)
    optimizer.create_state(model.trainable_variables)
    loss_sum = tf.Variable(0.0, dtype=tf.float64)
    step = make_train_step(model, optimizer, DeviceData(columns), loss_sum)

    def state():
        optimizer.flush()
        return [x.numpy() for x in (*model.variables, *optimizer.variables(), loss_sum)]

    step(np.arange(64))
    before = state()
    step(np.flatnonzero(columns.weight == 0)[:64])
    for a, b in zip(before, state(), strict=True):
        np.testing.assert_array_equal(a, b)
    step(np.arange(64))
    assert np.isfinite(loss_sum.numpy()) and loss_sum.numpy() > before[-1]


def run(folder, name, *, memory=None, **settings):
    rows = train(folder / "DATA", replace(RUN, **settings), out=folder / name, data_memory=memory)
    return rows[-1]


@pytest.fixture(scope="module")
def row(folder):
    return run(folder, "RUN")


def test_a_run_is_evaluated_with_weights(folder, data, row):
    result = evaluate_run(folder / "RUN", data.path, by="user", predictions=folder / "p.parquet")
    found, test = pd.read_parquet(folder / "p.parquet"), open_columns(data, "test")
    given = {"sample_weight": test.weight}
    scored = (found.label, found.probability)
    assert result.auc == row["test_auc"] == metrics.roc_auc(*scored, **given)
    assert result.log_loss == row["test_log_loss"] == metrics.log_loss(*scored, **given)
    assert result.calibration == metrics.calibration(*scored, **given)
    assert result.by.grouped.auc == metrics.grouped_auc(*scored, test.ids[:, 0], **given).auc
    assert result.auc != metrics.roc_auc(*scored)
    assert 0 < row["train_loss"] < 1 and row["test_auc_error"] == result.auc_error
    raw = pd.read_csv(folder / "log.csv").drop(columns=["w", "y"])
    assert len(cc.score(folder / "RUN", raw)) == 1200  # without weights


def test_the_ways_to_train_agree(folder, row):
    assert run(folder, "exact", update="exact")["test_auc"] == pytest.approx(
        row["test_auc"], abs=1e-5
    )
    assert run(folder, "streamed", memory=0.02)["test_auc"] == row["test_auc"]
    assert 0 < run(folder, "validated", validation_fraction=0.3)["validation_auc"] < 1


def test_held_out_rows_need_a_weight(columns):
    nothing = replace(columns, weight=np.zeros_like(columns.weight))
    with pytest.raises(InputError, match=r"all weights of the .* training rows are 0"):
        train_validation_split(nothing, 0.2)


def test_rows_to_score_need_a_weight_above_0():
    """Otherwise there is no label that could be the same for all."""
    given = (Path("data"), "test", [Target("click", False)], np.ones(3), np.zeros(3))
    with pytest.raises(InputError, match="data: no test row has a weight above 0; look"):
        check_targets_scored(*given, remedy="look")
