"""Runs: what is recorded, what is reproduced, and what is said of damage."""

import json
import os
import shutil
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from run_weights import assert_same_bits, metrics_of
from sklearn.metrics import log_loss, roc_auc_score

from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import read_columns
from cowclip_merlin.training import RunSettings, evaluate_run, run_logs, train
from cowclip_merlin.training.trainer import Trainer
from cowclip_merlin.workflows import PreparedData

SMALL = {"mlp": (16, 8), "batch_size": 256, "base_batch_size": 64, "seed": 5}


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    rows = train(data, RunSettings(model="deepfm", epochs=2, **SMALL), out=folder)
    return folder, rows


def test_what_a_run_folder_holds(run):
    folder, rows = run
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["model"] == "deepfm"
    assert config["hyperparameters"]["l2"] == pytest.approx(4e-5)
    assert config["hyperparameters"]["clip"] == "cowclip"
    assert {"tensorflow", "nvtabular", "python", "cowclip_merlin"} <= config["versions"].keys()
    table = metrics_of(folder)
    assert [row["epoch"] for row in table] == ["1", "2"]
    assert float(table[1]["test_auc"]) == rows[1]["test_auc"]
    assert not [name for name in rows[0] if name.startswith("validation")]
    assert {table[0][f"validation_{name}"] for name in ("auc", "log_loss", "seconds")} == {""}
    assert float(table[1]["train_loss"]) < float(table[0]["train_loss"])
    assert "test AUC" in (folder / "train.log").read_text()
    assert list((folder / "events").glob("events.out.tfevents*"))
    assert (folder / "checkpoints" / "2" / "manifest.json").exists()


def test_metrics_are_those_of_scikit_learn(run, data, tmp_path):
    folder, rows = run
    file = tmp_path / "predictions.parquet"
    result = evaluate_run(folder, data, predictions=file)
    table = pq.read_table(file).to_pandas()
    assert list(table.columns) == ["row", "label", "probability"]
    labels = read_columns(PreparedData.load(data), "test").label
    np.testing.assert_array_equal(table.label, labels)
    assert abs(result.auc - roc_auc_score(table.label, table.probability)) < 1e-12
    assert abs(result.log_loss - log_loss(table.label, table.probability)) < 1e-12
    assert (result.auc, result.log_loss) == (rows[-1]["test_auc"], rows[-1]["test_log_loss"])


def test_a_closed_output_ends_no_training(tmp_path, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    output = os.fdopen(write, "w")
    monkeypatch.setattr(sys, "stdout", output)
    with run_logs.run_logger(tmp_path / "train.log") as log:
        log.info("epoch 1")
        log.info("epoch 2")
    assert "epoch 2" in (tmp_path / "train.log").read_text()
    assert capsys.readouterr().err == ""
    with pytest.raises(BrokenPipeError):  # what was left to write
        output.close()


def test_divergence_in_the_last_step_is_called_that(data, tmp_path, monkeypatch):
    finish = Trainer._score

    def spoiled(self, *rest):
        weight = self.model.trainable_variables[-1]
        weight.assign(np.nan * weight)
        finish(self, *rest)

    monkeypatch.setattr(Trainer, "_score", spoiled)
    settings = RunSettings(model="deepfm", epochs=1, **SMALL)
    with pytest.raises(InputError, match=r"diverged: probabilities .* epoch 1"):
        train(data, settings, out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(data, run, tmp_path):
    folder = shutil.copytree(run[0], tmp_path / "run")
    settings = RunSettings(model="deepfm", epochs=2, **SMALL)
    values = folder / "checkpoints" / "2" / "weights.0.bin"
    values.write_bytes(values.read_bytes()[:100])
    rows = train(data, settings, out=folder, resume=True)
    assert [row["test_auc"] for row in rows] == [row["test_auc"] for row in run[1]]
    assert {type(value) for row in rows for value in row.values()} == {int, float}
    assert_same_bits(folder, run[0])


def test_the_speed_leaves_out_the_first_step_which_compiles(data, tmp_path, monkeypatch):
    monkeypatch.setattr("cowclip_merlin.training.run_logs.WAIT", 0.0)
    monkeypatch.setattr("cowclip_merlin.training.trainer.LONG", 0.0)
    settings = RunSettings(model="deepfm", update="exact", epochs=2, **SMALL)
    first, _ = train(data, settings, out=tmp_path / "run", checkpoint_every=4)
    told = (tmp_path / "run/train.log").read_text()
    assert told.count("compiling the first step") == told.count("to compile; the speed leaves") == 1
    rows = PreparedData.load(data).rows["train"] - 4 * 256
    assert first["rows_per_second"] * first["seconds"] == pytest.approx(rows, rel=0.05)
