"""Several targets: batches, the loss of a step, runs, evaluation and what reads a run."""

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from one_step import check_that_two_workers_equal_one, gradients

import cowclip_merlin as cc
from cowclip_merlin import compat, metrics
from cowclip_merlin.cli import main
from cowclip_merlin.diagnostics.probe import make_probe
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import DeviceData, StreamedData, open_columns
from cowclip_merlin.online.training.start import OfflineStart
from cowclip_merlin.targets import targets_of
from cowclip_merlin.training import RunSettings, evaluate_run, export_run, train
from cowclip_merlin.training.build import build_model, build_optimizer
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

SMALL = {"mlp": (8,), "batch_size": 64, "base_batch_size": 64, "epochs": 2, "embedding_dim": 4}
RUN = RunSettings(model="deepfm", multi_task="mmoe", experts=2, **SMALL)
TARGETS = ("click", "buy", "seconds")


def table():
    rng = np.random.default_rng(3)
    user, age = rng.integers(0, 40, 1200), rng.random(1200)
    click = (rng.random(1200) < 0.2 + 0.5 * (user % 2)).astype(int)
    buy = np.where(rng.random(1200) < 0.3, None, click * (rng.random(1200) < 0.5).astype(int))
    seconds = np.where(click == 1, user / 20 + rng.normal(size=1200) / 10, np.nan)
    weight = rng.integers(0, 4, 1200) / 2
    rows = {"user": user, "age": age, "click": click, "buy": buy, "seconds": seconds, "w": weight}
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    table().to_csv(folder / "log.csv", index=False)
    columns = {"kind": "table", "categorical": ("user",), "continuous": ("age",)}
    given = {"files": (folder / "log.csv",), **columns}
    several = {"label": TARGETS, "regression": ("seconds",)}
    prepare(PrepareSettings(out=folder / "DATA", **several, **given))
    prepare(PrepareSettings(out=folder / "WEIGHTED", weight="w", **several, **given))
    prepare(PrepareSettings(out=folder / "BINARY", label=("click", "buy"), **given))
    prepare(PrepareSettings(out=folder / "ONE", label="click", **given))
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return PreparedData.load(folder / "DATA")


@pytest.fixture(scope="module")
def columns(folder):
    return open_columns(PreparedData.load(folder / "WEIGHTED"), "train")


@pytest.fixture(scope="module")
def model(data):
    return build_model(RUN, RUN.hyperparameters("criteo"), data)


def test_streamed_batches_are_those_on_the_device(columns):
    kinds = DeviceData(columns), StreamedData(columns, memory=20_000)
    for pair in zip(*(each.batches(64, seed=1, epoch=2) for each in kinds), strict=True):
        first, second = (kind.unpack(batch) for kind, batch in zip(kinds, pair))
        assert first.labels.shape[1] == 3
        np.testing.assert_array_equal(first.labels, second.labels)
        np.testing.assert_array_equal(first.weights, second.weights)
        for kind, batch in zip(kinds, pair):
            part = kind.unpack(kind.part(batch, 3, 9))
            np.testing.assert_array_equal(part.labels, first.labels[3:9])
    assert columns.bytes_per_row == 4 * (1 + 1 + 3 + 1)


def test_a_cache_is_read_as_it_was_written(folder, data):
    first, again = open_columns(data, "test").label, open_columns(data, "test").label
    assert isinstance(again, np.memmap) and again.shape == (data.rows["test"], 3)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("buy", 2.0, "label 'buy' contains 2.0, neither 0 nor 1"),
        ("seconds", np.inf, "label 'seconds' contains inf, no finite number"),
        (TARGETS, np.nan, "a row has no label of click, buy, seconds"),
    ],
)
def test_damaged_labels_are_refused(folder, tmp_path, name, value, message):
    import shutil

    copy = shutil.copytree(folder / "DATA", tmp_path / "DATA")
    shutil.rmtree(copy / ".cache-test", ignore_errors=True)
    described = json.loads((copy / "dataset.json").read_text())
    (copy / "dataset.json").write_text(json.dumps(described | {"checksums": {}}))
    file = PreparedData.load(copy).files("test")[0]
    rows = pd.read_parquet(file)
    rows.loc[5, list(name) if name == TARGETS else name] = value
    rows.to_parquet(file)
    with pytest.raises(InputError, match=message):
        open_columns(PreparedData.load(copy), "test")


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_divides_by_all_rows(model, columns, weighted):
    """Against NumPy: the loss, and the gradient of the output's biases."""
    columns = columns if weighted else replace(columns, weight=None)
    rows = np.arange(50)
    z = cc.models.logits(model, DeviceData(columns).unpack(rows)).numpy().astype(np.float64)
    spread = model.blocks[0].columns.scales["seconds"][1]
    y, w = columns.label[rows], columns.weight[rows] if weighted else np.ones(50)
    loss, bias = 0.0, np.zeros(3)
    for row in range(50):
        for target in range(3):
            if np.isnan(y[row, target]):
                continue
            x, label = z[row, target], y[row, target]
            p = 1 / (1 + np.exp(-x))
            each = ((x - label) / spread) ** 2 if target == 2 else -np.log(p if label else 1 - p)
            loss += w[row] * each
            slope = 2 * (x - label) / spread if target == 2 else p - label  # its bias is scaled
            bias[target] += w[row] * slope / w.sum()
    found, loss_sum = gradients(model, columns, rows)
    assert loss_sum == pytest.approx(loss, rel=1e-5)
    biases = [g for g, x in zip(found, model.trainable_variables) if x.shape == (3,)]
    np.testing.assert_allclose(biases[0], bias, atol=1e-6)


def test_parts_of_a_batch_add_up(model, columns):
    """As micro-batches: the gradient of a batch is the mean of those of equal parts."""
    equal = replace(columns, weight=None)
    whole, _ = gradients(model, equal, np.arange(64))
    parts = [gradients(model, equal, np.arange(first, first + 16))[0] for first in range(0, 64, 16)]
    for expected, *each in zip(whole, *parts):
        np.testing.assert_allclose(np.mean(each, axis=0), expected, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_workers_share_the_loss(model, columns, monkeypatch, weighted):
    columns = columns if weighted else replace(columns, weight=None)
    check_that_two_workers_equal_one(model, columns, monkeypatch)


def test_diagnostics_see_the_gradient_of_the_step(data, columns):
    values = RUN.hyperparameters("criteo")
    model, optimizer = build_model(RUN, values, data), build_optimizer(RUN, values, data, steps=9)
    cc.models.attach(model, optimizer)
    found = make_probe(model, optimizer, DeviceData(columns))(np.arange(40))
    step, _ = gradients(model, columns, np.arange(40))
    table = next(g for g in step if g.shape[1:] == (4,))
    norms = np.linalg.norm(table, axis=1)[np.unique(columns.ids[:40, 0])]
    np.testing.assert_allclose(found.g_norm, norms, rtol=1e-4)
    np.testing.assert_array_equal(found.cnt, np.unique(columns.ids[:40, 0], return_counts=True)[1])


@pytest.fixture(scope="module")
def rows(folder):
    return train(folder / "WEIGHTED", RUN, out=folder / "RUN")


def of_target(found, name, test):
    """Labels, predictions and weights of the rows with a label of a target."""
    known = found[f"label_{name}"].notna().to_numpy()
    kind = "prediction" if name == "seconds" else "probability"
    return found[f"label_{name}"][known], found[f"{kind}_{name}"][known], test.weight[known], known


def test_a_run_is_evaluated_by_target(folder, rows):
    file = folder / "p.parquet"
    result = evaluate_run(folder / "RUN", folder / "WEIGHTED", by="user", predictions=file)
    found = pd.read_parquet(file)
    test = open_columns(PreparedData.load(folder / "WEIGHTED"), "test")
    row = rows[-1]
    assert list(result.targets) == list(TARGETS) and result.auc == row["test_auc"]
    for name in ("click", "buy"):
        y, p, w, known = of_target(found, name, test)
        each = result.targets[name]
        assert each.auc == row[f"test_{name}_auc"] == metrics.roc_auc(y, p, sample_weight=w)
        assert each.log_loss == row[f"test_{name}_log_loss"]
        assert each.log_loss == metrics.log_loss(y, p, sample_weight=w)
        assert each.rows == known.sum()
        ids = test.ids[known, 0]
        assert each.by.grouped.auc == metrics.grouped_auc(y, p, ids, sample_weight=w).auc
    y, p, w, known = of_target(found, "seconds", test)
    rmse = np.sqrt(np.average((y - p) ** 2, weights=w))
    assert result.targets["seconds"].rmse == row["test_seconds_rmse"] == pytest.approx(rmse)
    assert result.targets["seconds"].rows == known.sum() < len(found)


def test_metrics_csv_has_columns_for_each_target(folder, rows):
    with (folder / "RUN" / "metrics.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert float(written[-1]["test_buy_auc"]) == rows[-1]["test_buy_auc"]
    assert float(written[-1]["test_seconds_rmse"]) == rows[-1]["test_seconds_rmse"]
    assert written[-1]["test_auc"] == written[-1]["test_click_auc"]
    assert "of 2 experts" in (folder / "RUN" / "train.log").read_text()
    with (folder / "RUN" / "reliability.csv").open(newline="") as file:
        bins = [each for each in csv.DictReader(file) if each["epoch"] == "2"]
    test = open_columns(PreparedData.load(folder / "WEIGHTED"), "test")
    counted = ~np.isnan(test.label[:, 0]) & (test.weight > 0)
    assert sum(int(each["rows"]) for each in bins) == counted.sum()


@pytest.mark.thorough
def test_a_run_resumes_to_the_same_bits(folder):
    whole = train(folder / "DATA", RUN, out=folder / "WHOLE")
    train(folder / "DATA", replace(RUN, epochs=1), out=folder / "HALF")
    resumed = train(folder / "DATA", RUN, out=folder / "HALF", resume=True)
    for name in ("train_loss", "test_auc", "test_buy_auc", "test_seconds_rmse"):
        assert resumed[-1][name] == whole[-1][name]
    exact = train(folder / "DATA", replace(RUN, update="exact"), out=folder / "EXACT")
    streamed = train(folder / "DATA", RUN, out=folder / "STREAMED", data_memory=0.02)
    assert exact[-1]["test_seconds_rmse"] == pytest.approx(whole[-1]["test_seconds_rmse"], abs=1e-5)
    assert streamed[-1]["test_seconds_rmse"] == whole[-1]["test_seconds_rmse"]


def test_raw_rows_score_as_prepared_ones(folder, rows):
    raw = table().drop(columns=["w", *TARGETS])
    found = cc.score(folder / "RUN", raw)
    assert found.shape == (1200, 3)
    new = {"kind": "table", "files": (folder / "log.csv",), "like": folder / "WEIGHTED"}
    prepare(PrepareSettings(out=folder / "ALL", **new))
    evaluate_run(folder / "RUN", folder / "ALL", predictions=folder / "all.parquet")
    expected = pd.read_parquet(folder / "all.parquet")
    names = ["probability_click", "probability_buy", "prediction_seconds"]
    np.testing.assert_array_equal(found, expected[names])
    out = ["--out", str(folder / "scores.parquet")]
    assert main(["score", str(folder / "RUN"), str(folder / "log.csv"), *out]) == 0
    np.testing.assert_array_equal(pd.read_parquet(folder / "scores.parquet")[names], found)


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["DATA", "BINARY"])
def test_an_exported_model_names_its_outputs(folder, name, tmp_path):
    tf = compat.tensorflow()
    how = {"multi_task": "esmm", "experts": 4} if name == "BINARY" else {}
    train(folder / name, replace(RUN, epochs=1, **how), out=tmp_path / "RUN")
    export_run(tmp_path / "RUN", folder / name, out=tmp_path / "MODEL")
    served = tf.saved_model.load(str(tmp_path / "MODEL")).signatures["serving_default"]
    test = open_columns(PreparedData.load(folder / name), "test")
    given = {"user": test.ids[:, 0].astype(np.int64), "age": test.continuous[:, 0]}
    found = served(**{key: tf.constant(value) for key, value in given.items()})
    assert set(found) == set(TARGETS[: len(found)])
    evaluate_run(tmp_path / "RUN", folder / name, predictions=tmp_path / "p.parquet")
    expected = pd.read_parquet(tmp_path / "p.parquet")
    for target, values in found.items():
        kind = "prediction" if target == "seconds" else "probability"
        np.testing.assert_allclose(values, expected[f"{kind}_{target}"], rtol=1e-5)
    if name == "BINARY":
        assert (found["buy"].numpy() <= found["click"].numpy()).all()


def test_the_command_line_from_the_log_to_the_scores(folder, tmp_path, capsys):
    data, run = str(tmp_path / "DATA"), str(tmp_path / "RUN")
    labels = ["--label", ",".join(TARGETS), "--regression", "seconds", "--categorical", "user"]
    assert main(["prepare", "table", str(folder / "log.csv"), "--out", data, *labels]) == 0
    model = ["--model", "dcn", "--batch-size", "64", "--mlp", "8", "--epochs", "2"]
    stop = ["--validation-fraction", "0.2", "--early-stopping", "1"]
    assert main(["train", data, "--out", run, *model, *stop, "--multi-task", "mmoe"]) == 0
    said = capsys.readouterr().out
    assert "validation click AUC 0." in said and "seconds RMSE " in said
    assert main(["evaluate", run, data, "--by", "user", "--against", run]) == 0
    said = capsys.readouterr().out
    assert "test click: 1" in said and "test seconds: " in said and "RMSE" in said
    assert said.count("AUC by user") == 2 and said.count("the same AUC as") == 2
    assert main(["export", run, data, "--out", str(tmp_path / "MODEL")]) == 0
    assert "gives click, buy, seconds, float32 [b]" in capsys.readouterr().out


def test_a_run_of_one_label_is_described_as_before(folder, tmp_path):
    one = replace(RUN, multi_task="shared_bottom", experts=4, epochs=1)
    train(folder / "ONE", one, out=tmp_path / "RUN")
    config = json.loads((tmp_path / "RUN" / "config.json").read_text())
    assert "data_targets" not in config
    with (tmp_path / "RUN" / "metrics.csv").open(newline="") as file:
        assert not [name for name in csv.DictReader(file).fieldnames or () if "click" in name]
    for name in ("multi_task", "experts"):  # as runs of earlier versions
        del config["settings"][name]
    (tmp_path / "RUN" / "config.json").write_text(json.dumps(config))
    assert RunConfig.load(tmp_path / "RUN").settings == one
    assert 0 < evaluate_run(tmp_path / "RUN", folder / "ONE").auc < 1


def test_a_run_needs_its_targets(folder, rows):
    with pytest.raises(
        InputError, match=r"has one label, but .* was trained on click, buy, seconds"
    ):
        evaluate_run(folder / "RUN", folder / "ONE")
    with pytest.raises(InputError, match=r"has click, buy, but .* was trained on click, buy, sec"):
        cc.training.load_run(folder / "RUN", folder / "BINARY")


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("ONE", {}, "`multi_task` mmoe has no effect with one label"),
        ("DATA", {"multi_task": "esmm", "experts": 4}, "needs two labels of 0 and 1"),
    ],
)
def test_what_a_run_cannot_have_is_refused(folder, tmp_path, name, given, message):
    with pytest.raises(InputError, match=message):
        train(folder / name, replace(RUN, **given), out=tmp_path / "RUN")
    assert not (tmp_path / "RUN").exists()


def test_settings_without_effect_are_refused():
    with pytest.raises(InputError, match="`experts` has no effect with `multi_task` shared_bottom"):
        replace(RUN, multi_task="shared_bottom")


def test_a_target_needs_both_labels_to_be_scored(folder, tmp_path):
    rows = table()
    rows.loc[1100:, "buy"] = None
    rows.to_csv(tmp_path / "log.csv", index=False)
    given = {"kind": "table", "categorical": ("user",), "label": ("click", "buy"), "split": "time"}
    data = prepare(PrepareSettings(files=(tmp_path / "log.csv",), out=tmp_path / "DATA", test_fraction=0.05, **given))  # noqa: E501  # fmt: skip
    with pytest.raises(InputError, match="no test row has a label 'buy'; prepare with a larger"):
        train(data.path, replace(RUN, epochs=1), out=tmp_path / "RUN")
    train(data.path, replace(RUN, epochs=1, validation_fraction=0.2), out=tmp_path / "RUN")
    found = evaluate_run(tmp_path / "RUN", data.path).targets["buy"]  # not one test row has it
    assert found.rows == 0 and np.isnan(found.auc) and np.isnan(found.log_loss)


def test_a_stream_with_other_labels_refuses_the_run(folder, rows):
    trainer = SimpleNamespace(features=SimpleNamespace(targets=targets_of(("click",), ())))
    with pytest.raises(InputError, match="name the same `label` and `regression`"):
        OfflineStart(folder / "RUN", folder / "DATA", trainer)
