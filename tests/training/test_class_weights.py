"""Weights of the labels in the loss, against rows that occur several times."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_step import check_that_two_workers_equal_one, gradients

import cowclip_merlin as cc
from cowclip_merlin import compat, metrics
from cowclip_merlin.contrib.diagnostics.probe import make_probe
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    ColumnArrays,
    DeviceData,
    StreamedData,
    added_log_odds,
    class_weights_of,
    open_columns,
    read_columns,
    total_weight,
)
from cowclip_merlin.training import (
    RunSettings,
    evaluate_run,
    export_run,
    load_run,
    train,
)
from cowclip_merlin.training.build import build_model, build_optimizer
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

SMALL = {"mlp": (8,), "batch_size": 64, "base_batch_size": 64, "epochs": 1, "embedding_dim": 4}
RUN = RunSettings(model="deepfm", **SMALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("classes"), np.random.default_rng(3)
    user, age = rng.integers(0, 40, 1200), rng.random(1200)
    y = (rng.random(1200) < 0.1 + 0.3 * (user % 2)).astype(int)
    rows = pd.DataFrame({"user": user, "age": age, "y": y, "w": rng.integers(0, 4, 1200) / 2})
    rows.to_csv(folder / "log.csv", index=False)
    columns = {"label": "y", "categorical": ("user",), "continuous": ("age",), "kind": "table"}
    for name, more in (("DATA", {}), ("WEIGHTED", {"weight": "w"})):
        files = (folder / "log.csv",)
        prepare(PrepareSettings(files=files, out=folder / name, **columns, **more))
    return folder


@pytest.fixture(scope="module")
def columns(folder):
    return open_columns(PreparedData.load(folder / "DATA"), "train")


@pytest.fixture(scope="module")
def model(folder):
    return build_model(RUN, RUN.hyperparameters("criteo"), PreparedData.load(folder / "DATA"))


def rows_of(labels, weights=None):
    n = len(labels)
    weight = None if weights is None else np.asarray(weights, np.float32)
    label = np.asarray(labels, np.float32)
    return ColumnArrays(np.zeros((n, 1), "i4"), np.zeros((n, 0), "f4"), label, weight=weight)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0, 0.5, 1, 3])), min_size=2, max_size=30)
)
@settings(max_examples=50, deadline=None)
def test_balanced_is_the_formula_of_scikit_learn(rows):
    labels, weights = np.array(rows).T
    sums = [weights[labels == k].sum() for k in (0, 1)]
    if not all(sums):
        with pytest.raises(InputError, match="no training row has the label"):
            class_weights_of("balanced", rows_of(labels, weights))
        return
    found = class_weights_of("balanced", rows_of(labels, weights))
    np.testing.assert_allclose(found, weights.sum() / (2 * np.array(sums)))
    unweighted = class_weights_of("balanced", rows_of(labels))
    np.testing.assert_allclose(unweighted, len(labels) / (2 * np.bincount(labels.astype(int))))
    weighted = replace(rows_of(labels, weights), class_weights=(0.5, 7.0))
    expected = sum(w * (0.5, 7.0)[int(y)] for y, w in zip(labels, weights))
    assert total_weight(weighted) == pytest.approx(expected)


def test_rows_that_all_weigh_nothing_are_refused():
    with pytest.raises(InputError, match="gives all training rows the weight 0"):
        class_weights_of("1:0", rows_of([0, 1], [0, 2]))
    assert class_weights_of("1:0", rows_of([0, 1])) == (1, 0)


@contextmanager
def starting_at(model, weights):
    """A model whose first scores in the loss are those without weights."""
    bias, shift = model.blocks[0].logit.bias, [added_log_odds(weights)]
    bias.assign_sub(shift)
    yield
    bias.assign_add(shift)


@pytest.mark.parametrize("kind", [DeviceData, StreamedData])
def test_a_label_of_weight_3_is_its_rows_three_times(model, columns, kind):
    rows = np.arange(60)
    positive = rows[columns.label[:60] == 1]
    weighted = replace(columns, class_weights=(1.0, 3.0))
    with starting_at(model, (1.0, 3.0)):
        once, loss = gradients(model, weighted, rows, kind)
    thrice, other = gradients(model, columns, [*rows, *positive, *positive], kind)
    assert loss == pytest.approx(other, rel=1e-6)
    for a, b in zip(once, thrice):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_class_weights_multiply_the_weights_of_rows(model, columns):
    weight = (np.arange(len(columns)) % 4 / 2).astype("f4")
    product = np.where(columns.label == 1, 3 * weight, weight).astype("f4")
    both = replace(columns, weight=weight, class_weights=(1.0, 3.0))
    with starting_at(model, (1.0, 3.0)):
        found, loss = gradients(model, both, np.arange(60))
    expected, other = gradients(model, replace(columns, weight=product), np.arange(60))
    assert loss == pytest.approx(other, rel=1e-6)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_workers_share_the_weighted_mean(model, columns, monkeypatch):
    weighted = replace(columns, class_weights=(0.5, 4.0))
    check_that_two_workers_equal_one(model, weighted, monkeypatch)


def test_diagnostics_see_the_weighted_gradient(folder, columns):
    data, values = PreparedData.load(folder / "DATA"), RUN.hyperparameters("criteo")
    model = build_model(RUN, values, data)
    optimizer = build_optimizer(RUN, values, data, steps=9)
    from cowclip_merlin import models

    models.attach(model, optimizer)
    product = np.where(columns.label == 1, 3, 1).astype("f4")
    by_class = DeviceData(replace(columns, class_weights=(1.0, 3.0)))
    by_row = DeviceData(replace(columns, weight=product))
    with starting_at(model, (1.0, 3.0)):
        found = make_probe(model, optimizer, by_class)(np.arange(40))
    expected = make_probe(model, optimizer, by_row)(np.arange(40))
    np.testing.assert_allclose(found.g_norm, expected.g_norm, rtol=1e-5, atol=1e-9)


def run(folder, out, data="DATA", **more):
    return train(folder / data, replace(RUN, **more), out=folder / out)[-1]


@pytest.mark.runs
def test_scores_are_click_rates(folder):
    """As without weights, at every door: the loss has the log of their ratio added."""
    fast = {"overrides": {"dense_lr": 0.02, "warmup_epochs": 0.0}, "epochs": 2}
    plain, weighted = (
        run(folder, "plain", **fast),
        run(folder, "weighted", class_weight="1:15", **fast),
    )
    scores = folder / "p.parquet"
    found = evaluate_run(folder / "weighted", folder / "DATA", predictions=scores, overwrite=True)
    scored = pd.read_parquet(scores)
    assert weighted["test_log_loss"] == metrics.log_loss(scored.label, scored.probability)
    assert found.calibration == weighted["test_calibration"] < 1.5 * plain["test_calibration"]
    assert 0 < weighted["train_loss"] < 9
    rate = pd.read_csv(folder / "log.csv").y.mean()  # with scores of the weighted rows 0.83
    assert rate / 1.5 < cc.score(folder / "weighted", folder / "log.csv").mean() < 1.5 * rate
    served = load_run(folder / "weighted", folder / "DATA")
    export_run(folder / "weighted", folder / "DATA", out=folder / "MODEL")
    rows = read_columns(PreparedData.load(folder / "DATA"), "test")
    inputs = {"user": rows.ids[:, 0].astype("i8"), "age": rows.continuous[:, 0]}
    values = served.predict(inputs, verbose=0, batch_size=len(rows))[:, 0]
    np.testing.assert_allclose(values, scored.probability, atol=1e-6)
    exported = compat.tensorflow().saved_model.load(str(folder / "MODEL"))
    answer = exported.signatures["serving_default"](**inputs)["probability"]
    np.testing.assert_allclose(answer, scored.probability, atol=1e-6)
    assert RunConfig.load(folder / "weighted").settings.class_weight == "1:15"
    balanced = run(folder, "balanced", "WEIGHTED", class_weight="balanced", update="exact")
    assert 0 < balanced["test_auc"] < 1
    assert "class weights in the loss: " in (folder / "balanced" / "train.log").read_text()
    train(
        folder / "DATA",
        replace(RUN, class_weight="1:15"),
        out=folder / "on",
        warm_start=folder / "weighted",
    )
    found = evaluate_run(folder / "on", folder / "DATA")
    assert found.calibration < 1.5 * plain["test_calibration"]


@pytest.mark.runs
def test_a_label_without_weight_is_told(folder):
    run(folder, "one", class_weight="0:0")
    assert "scores are no click rates" in (folder / "one" / "train.log").read_text()
