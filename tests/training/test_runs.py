"""Runs: what is recorded, what is reproduced, and what a stopped run goes on from."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import batches, read_columns, steps_per_epoch
from cowclip_merlin.system.signals import Stopped
from cowclip_merlin.training import RunSettings, evaluate_run, run_logs, train, trainer
from cowclip_merlin.training.trainer import Trainer
from cowclip_merlin.workflows import PreparedData

SMALL = {"mlp": (16, 8), "batch_size": 256, "base_batch_size": 64, "seed": 5}
ARGUMENTS = [
    "--model", "deepfm", "--batch-size", "64", "--base-batch-size", "32", "--mlp", "16,8",
    "--epochs", "3", "--seed", "7", "--checkpoint-every", "5", "--device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    rows = train(data, RunSettings(model="deepfm", epochs=2, **SMALL), out=folder)
    return folder, rows


def final_weights(folder):
    """Every tensor of the last checkpoint, optimizer state included."""
    tf = compat.tensorflow()
    path = tf.train.latest_checkpoint(str(folder / "checkpoints"))
    reader = tf.train.load_checkpoint(path)
    names = [
        n for n in reader.get_variable_to_shape_map()
        if "_CHECKPOINTABLE_OBJECT_GRAPH" not in n and "save_counter" not in n
    ]  # fmt: skip
    return {n: reader.get_tensor(n) for n in names}


def assert_bit_equal(a, b):
    a, b = final_weights(a), final_weights(b)
    assert a.keys() == b.keys() and len(a) > 10
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_what_a_run_folder_holds(run):
    folder, rows = run
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["model"] == "deepfm"
    assert config["hyperparameters"]["l2"] == pytest.approx(4e-5)
    assert config["hyperparameters"]["clip"] == "cowclip"
    assert {"tensorflow", "nvtabular", "python", "cowclip_merlin"} <= config["versions"].keys()
    with (folder / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["epoch"] for row in table] == ["1", "2"]
    assert float(table[1]["test_auc"]) == rows[1]["test_auc"]
    assert float(table[1]["train_loss"]) < float(table[0]["train_loss"])
    assert "test AUC" in (folder / "train.log").read_text()
    assert list((folder / "events").glob("events.out.tfevents*"))
    assert (folder / "checkpoints" / "checkpoint").exists()


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


def test_train_loss_is_the_mean_over_all_rows(data, tmp_path):
    """With all rates 0 the weights stay, so the mean training loss is that of the train split."""
    zero = {"embedding_lr": 0.0, "dense_lr": 0.0, "warmup_epochs": 0.0}
    settings = RunSettings(model="deepfm", epochs=1, overrides=zero, **SMALL)
    rows = train(data, settings, out=tmp_path / "run")
    result = evaluate_run(tmp_path / "run", data, split="train")
    assert rows[0]["train_loss"] == pytest.approx(result.log_loss, rel=1e-6)


def test_bfloat16_is_trained_and_evaluated_in(run, data, tmp_path):
    settings = RunSettings(model="deepfm", epochs=2, precision="bfloat16", **SMALL)
    rows = train(data, settings, out=tmp_path / "run")
    result = evaluate_run(tmp_path / "run", data)
    assert (result.auc, result.log_loss) == (rows[-1]["test_auc"], rows[-1]["test_log_loss"])
    (_, in_float32), last = run, rows[-1]
    assert last["train_loss"] != in_float32[-1]["train_loss"]
    assert last["train_loss"] == pytest.approx(in_float32[-1]["train_loss"], rel=0.01)
    policies = compat.tensorflow().keras.mixed_precision
    assert policies.global_policy().name == "float32"  # only the run's model is in half
    assert {t.dtype for t in final_weights(tmp_path / "run").values()} == {
        t.dtype for t in final_weights(run[0]).values()
    }


@pytest.mark.one_case
@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_the_same_seed_gives_the_same_weights(data, tmp_path, update):
    settings = RunSettings(model="dcnv2", epochs=1, update=update, **SMALL)
    for name in ("a", "b"):
        train(data, settings, out=tmp_path / name)
    assert_bit_equal(tmp_path / "a", tmp_path / "b")


def test_rules_and_clips_reach_the_optimizer(data, tmp_path):
    ends = []
    for i, (rule, clip) in enumerate([("none", None), ("cowclip", None), ("cowclip", "field")]):
        settings = RunSettings(
            model="deepfm", epochs=1, rule=rule, clip=clip, overrides={"bound": 1e-4}, **SMALL
        )
        ends.append(train(data, settings, out=tmp_path / str(i))[-1])
    assert len({row["train_loss"] for row in ends}) == 3
    assert ends[0]["mean_clip_factor"] == 1.0 and ends[0]["clipped_share"] == 0.0
    assert ends[1]["dense_lr"] == pytest.approx(8e-4 * 2, rel=1e-6)


def test_warm_up_reaches_the_rate_after_its_epochs(data, tmp_path):
    half = RunSettings(model="deepfm", epochs=1, overrides={"warmup_epochs": 2.0}, **SMALL)
    row = train(data, half, out=tmp_path / "half")[-1]
    assert row["dense_lr"] == pytest.approx(8e-4 * 2 / 2, rel=1e-6)


def start(data, out):
    command = [sys.executable, "-m", "cowclip_merlin", "train", str(data), "--out", str(out)]
    return subprocess.Popen(
        [*command, *ARGUMENTS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_checkpoint(process, out):
    while not (out / "checkpoints" / "checkpoint").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


@pytest.fixture(scope="module")
def uninterrupted(data, make_once):
    def make(folder):
        assert main(["train", str(data), "--out", str(folder / "run"), *ARGUMENTS]) == 0

    return make_once("uninterrupted", make) / "run"


@pytest.mark.thorough
@pytest.mark.system
def test_killed_at_a_random_step_and_resumed_is_bit_equal(data, uninterrupted, tmp_path):
    out = tmp_path / "run"
    process = start(data, out)
    wait_for_checkpoint(process, out)
    time.sleep(random.uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    assert main(["train", str(data), "--out", str(out), *ARGUMENTS, "--resume"]) == 0
    assert_bit_equal(out, uninterrupted)
    assert [r["test_auc"] for r in csv.DictReader((out / "metrics.csv").open())] == [
        r["test_auc"] for r in csv.DictReader((uninterrupted / "metrics.csv").open())
    ]


@pytest.mark.system
def test_sigterm_ends_with_a_checkpoint(data, uninterrupted, tmp_path):
    out = tmp_path / "run"
    process = start(data, out)
    wait_for_checkpoint(process, out)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "--resume" in errors
    assert main(["train", str(data), "--out", str(out), *ARGUMENTS, "--resume"]) == 0
    assert_bit_equal(out, uninterrupted)


@pytest.mark.system
def test_ctrl_c_ends_with_a_checkpoint(data, uninterrupted, tmp_path, capsys):
    out = tmp_path / "run"

    def interrupt():
        while not (out / "checkpoints" / "checkpoint").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    command = ["train", str(data), "--out", str(out), *ARGUMENTS]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        assert main(command) == 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)
    assert "--resume" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0
    assert_bit_equal(out, uninterrupted)


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


@pytest.mark.thorough
def test_stopped_in_the_last_step_of_an_epoch(data, tmp_path, monkeypatch):
    """What is left of the epoch then has no rows, and no fewer."""
    rows = PreparedData.load(data).rows["train"]
    settings = RunSettings(model="deepfm", epochs=1, **(SMALL | {"batch_size": rows // 2 + 1}))
    assert rows % settings.batch_size
    monkeypatch.setattr(trainer, "steps_per_execution", lambda batch_size: 1)
    step, done = Trainer._train_batch, []

    def stopped(self, batch):
        step(self, batch)
        done.append(batch)
        if len(done) == self.steps:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Trainer, "_train_batch", stopped)
        train(data, settings, out=tmp_path / "run")
    (resumed,) = train(data, settings, out=tmp_path / "run", resume=True)
    assert resumed["rows_per_second"] == 0
    (straight,) = train(data, settings, out=tmp_path / "straight")
    assert resumed["test_auc"] == straight["test_auc"]
    assert resumed["train_loss"] == straight["train_loss"]


@pytest.mark.one_case
@pytest.mark.parametrize("update", ["dense", "exact", "lazy"])
def test_several_steps_in_a_call_are_those_steps(data, tmp_path, monkeypatch, update):
    """Also when a run stops between calls and goes on where no call would have begun."""
    settings = RunSettings(model="deepfm", epochs=2, update=update, **(SMALL | {"batch_size": 70}))
    rows, train_batch, calls = PreparedData.load(data).rows["train"], Trainer._train_batch, []
    steps = -(-rows // 70)
    assert steps % 16 and steps > 32

    def stopped(self, batch):
        train_batch(self, batch)
        calls.append(len(batch))
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Trainer, "_train_batch", stopped)
        patch.setattr(trainer, "steps_per_execution", lambda batch_size: 5)
        train(data, settings, out=tmp_path / "stopped")
    assert calls == [350]
    train(data, settings, out=tmp_path / "stopped", resume=True)
    together = train(data, settings, out=tmp_path / "together")
    monkeypatch.setattr(trainer, "steps_per_execution", lambda batch_size: 1)
    alone = train(data, settings, out=tmp_path / "alone")
    for folder in ("stopped", "together"):
        assert_bit_equal(tmp_path / folder, tmp_path / "alone")
    assert [r["train_loss"] for r in together] == [r["train_loss"] for r in alone]
    assert [r["step"] for r in together] == [steps, 2 * steps]


def test_it_trains_in_another_thread(data, tmp_path):
    """Python lets signals be handled in the main thread only."""
    settings = RunSettings(model="deepfm", epochs=1, **SMALL)
    with ThreadPoolExecutor(1) as pool:
        (row,) = pool.submit(train, data, settings, out=tmp_path / "run").result(timeout=300)
    assert row["epoch"] == 1


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
    last = Path(compat.tensorflow().train.latest_checkpoint(str(folder / "checkpoints")))
    (values,) = last.parent.glob(f"{last.name}.data-*")
    values.write_bytes(values.read_bytes()[:100])
    rows = train(data, settings, out=folder, resume=True)
    assert [row["test_auc"] for row in rows] == [row["test_auc"] for row in run[1]]
    assert {type(value) for row in rows for value in row.values()} == {int, float}
    assert_bit_equal(folder, run[0])


@pytest.mark.thorough
def test_a_finished_run_can_be_lengthened(data, uninterrupted, tmp_path):
    settings = RunSettings(model="deepfm", epochs=1, **SMALL)
    train(data, settings, out=tmp_path / "run")
    rows = train(data, replace(settings, epochs=2), out=tmp_path / "run", resume=True)
    straight = train(data, replace(settings, epochs=2), out=tmp_path / "straight")
    assert rows[-1]["test_auc"] == straight[-1]["test_auc"]
    assert_bit_equal(tmp_path / "run", tmp_path / "straight")


def refused_to_shorten(data, out):
    before = {file: file.read_bytes() for file in (out / "config.json", out / "metrics.csv")}
    words = "run: `epochs` is 1, but epoch 2 "
    with pytest.raises(InputError, match=words):
        train(data, RunSettings(model="deepfm", epochs=1, **SMALL), out=out, resume=True)
    return {file: file.read_bytes() for file in before} == before


def test_a_run_cannot_be_shortened(data, run, tmp_path):
    assert refused_to_shorten(data, shutil.copytree(run[0], tmp_path / "run"))


def test_a_run_cannot_be_shortened_to_before_its_last_step(data, tmp_path, monkeypatch):
    train_batch, steps = Trainer._train_batch, -(-PreparedData.load(data).rows["train"] // 256)
    monkeypatch.setattr(trainer, "steps_per_execution", lambda batch_size: 1)
    done = []

    def stopped(self, batch):
        train_batch(self, batch)
        done.append(batch)
        if len(done) == steps + 1:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Trainer, "_train_batch", stopped)
        train(data, RunSettings(model="deepfm", epochs=2, **SMALL), out=tmp_path / "run")
    assert refused_to_shorten(data, tmp_path / "run")


def test_every_row_comes_once_and_the_last_batch_is_kept():
    seen = [b.tolist() for b in batches(103, 10, seed=1, epoch=0)]
    assert [len(b) for b in seen] == [10] * 10 + [3]
    assert len(seen) == steps_per_epoch(103, 10)
    assert sorted(row for b in seen for row in b) == list(range(103))
    assert seen != [b.tolist() for b in batches(103, 10, seed=1, epoch=1)]
    assert seen[4:] == [b.tolist() for b in batches(103, 10, seed=1, epoch=0, start=4)]


@pytest.mark.one_case
@pytest.mark.parametrize("model", ["deepfm", "dcnv2"])  # tests/smoke.py has all four
def test_a_run_with_exact_updates_ends_where_dense_ones_do(data, tmp_path, model):
    auc = {}
    for update in ("dense", "exact"):
        settings = RunSettings(model=model, epochs=2, update=update, **SMALL)
        auc[update] = train(data, settings, out=tmp_path / update)[-1]["test_auc"]
    assert auc["exact"] == pytest.approx(auc["dense"], abs=1e-5)
