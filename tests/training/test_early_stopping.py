"""Early stopping: when a run stops, which weights it keeps, and what it tells at its end."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from run_weights import assert_same_bits, stopped_at
from sklearn.metrics import roc_auc_score

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import row_order
from cowclip_merlin.training import RunSettings, evaluate_run, evaluation, train
from cowclip_merlin.training.stopping import early_stopping
from cowclip_merlin.training.stopping.early_stopping import (
    end_message,
    kept_scorings,
    served_epoch,
)
from cowclip_merlin.training.trainer import Trainer

SETTINGS = RunSettings(
    model="deepfm", mlp=(8,), batch_size=64, base_batch_size=64, epochs=8, seed=5,
    validation_fraction=0.2, early_stopping=2,
)  # fmt: skip
ARGUMENTS = (
    "--model", "deepfm", "--mlp", "8", "--batch-size", "64", "--base-batch-size", "64",
    "--seed", "5", "--validation-fraction", "0.2", "--device", "cpu",
)  # fmt: skip
AUCS = (0.6, 0.7, 0.7, 0.65, 0.9)  # the same again is no rise: epoch 2 is best, 4 is the last


@pytest.fixture(scope="module")
def rows(make_once):
    """A prepared folder of two categorical columns and a number."""

    def make(folder):
        rng = np.random.default_rng(1)
        a, b, x = rng.integers(0, 40, 600), rng.integers(0, 7, 600), rng.random(600).round(3)
        click = rng.random(600) < 0.2 + 0.5 * (a % 2)
        lines = [f"{int(c)},a{i},b{j},{z}" for c, i, j, z in zip(click, a, b, x, strict=True)]
        (folder / "log.csv").write_text("\n".join(["click,a,b,x", *lines]) + "\n")
        words = ["--label", "click", "--categorical", "a,b", "--continuous", "x"]
        out = ["--out", str(folder / "data")]
        assert main(["prepare", "table", str(folder / "log.csv"), *out, *words]) == 0

    return make_once("rows_to_stop_on", make) / "data"


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    """Every run has the AUCs above; nothing else of its scores changes."""
    finish, real = Trainer._score, evaluation.evaluate

    def finish_epoch(self, epoch, *rest):
        def evaluate(*given, **options):
            return replace(real(*given, **options), auc=AUCS[epoch])

        with monkeypatch.context() as patch:
            patch.setattr(evaluation, "evaluate", evaluate)
            finish(self, epoch, *rest)

    monkeypatch.setattr(Trainer, "_score", finish_epoch)


@pytest.fixture(scope="module")
def make_run(rows, tmp_path_factory):
    """Trains a run of some epochs, once; the autouse fixture above is active then."""
    made = {}

    def get(epochs=None):
        if epochs not in made:
            plain = replace(SETTINGS, early_stopping=None, epochs=epochs or 1)
            out = tmp_path_factory.mktemp("stopping") / "run"
            train(rows, plain if epochs else SETTINGS, out=out)
            made[epochs] = out
        return made[epochs]

    return get


def assert_same_runs(a, b):
    assert kept_scorings(a) == kept_scorings(b)
    for folder in ("checkpoints", "checkpoints/best"):
        assert_same_bits(a, b, folder)


def probabilities(run, rows, tmp_path):
    file = tmp_path / f"{run.parent.name}.parquet"
    evaluate_run(run, rows, split="train", predictions=file)
    return pq.read_table(file)


def test_it_stops_and_keeps_the_first_of_the_best_epochs(rows, make_run, tmp_path):
    run, straight = make_run(), make_run(2)
    assert_same_bits(run, straight, "checkpoints/best", of_b="checkpoints")
    assert kept_scorings(run) == [2]
    assert served_epoch(run) == "epoch 2 of 4 (best on validation rows)"
    ours, theirs = probabilities(run, rows, tmp_path), probabilities(straight, rows, tmp_path)
    assert ours.equals(theirs)


def test_what_the_commands_tell(rows, make_run, tmp_path, capsys):
    out, words = str(tmp_path / "run"), "epoch 2 of 4 (best on validation rows)"
    command = ["train", str(rows), "--out", out, *ARGUMENTS, "--early-stopping", "2"]
    assert main(command) == 0
    *_, said, last, next_step = capsys.readouterr().out.splitlines()
    assert next_step.endswith(f"test rows: cowclip evaluate {out} {rows}")
    assert said == (
        "stopped: no higher validation AUC for 2 epochs; the run keeps the weights of "
        f"{words}, validation AUC 0.70000"
    )
    assert last.startswith("validation AUC 0.70000, ") and last.endswith(
        f" after {words}; run folder {out}"
    )
    log = (tmp_path / "run/train.log").read_text()
    assert said in log and "epoch 4: " in log and "epoch 5: " not in log
    against = str(make_run())
    capsys.readouterr()
    for args in (["evaluate", out, str(rows), "--against", against], ["inspect", out]):
        assert main(args) == 0
        assert capsys.readouterr().out.startswith(f"{out}: {words}\n")


@pytest.mark.thorough
def test_what_other_readers_tell(rows, make_run, tmp_path, capsys):
    run, log = str(make_run()), str(rows.parent / "log.csv")
    capsys.readouterr()
    for args in (
        ["export", run, str(rows), "--out", str(tmp_path / "model")],
        ["export", run, str(rows), "--out", str(tmp_path / "models"), "--triton"],
        ["score", run, log, "--out", str(tmp_path / "scores.parquet")],
    ):
        assert main(args) == 0
        told = capsys.readouterr().out
        assert told.startswith(f"{run}: epoch 2 of 4 (best on validation rows)\n")


@pytest.mark.one_case
@pytest.mark.parametrize("epochs", [20, 8])
def test_a_run_that_has_stopped_stays_as_it_is(rows, make_run, tmp_path, epochs):
    """Also with more epochs: these do not change when it stops."""
    run = shutil.copytree(make_run(), tmp_path / "run")
    files = [*run.rglob("checkpoints/**/*"), run / "metrics.csv"]
    before = [file.stat().st_mtime_ns for file in files]
    records = train(rows, replace(SETTINGS, epochs=epochs), out=run, resume=True)
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    assert [file.stat().st_mtime_ns for file in files] == before
    assert (run / "train.log").read_text().count("stopped: no higher validation AUC") == 2


@pytest.mark.thorough
def test_a_run_of_fewer_epochs_can_be_lengthened(rows, make_run, tmp_path):
    run = tmp_path / "run"
    train(rows, replace(SETTINGS, epochs=3), out=run)
    assert "0.70000" in (run / "train.log").read_text().splitlines()[-1]
    assert "stopped" not in (run / "train.log").read_text()
    train(rows, SETTINGS, out=run, resume=True)
    assert_same_runs(run, make_run())


@pytest.mark.one_case
@pytest.mark.parametrize("epoch", [2, 0, 3])
def test_a_run_stopped_by_a_signal_goes_on_to_the_same_bits(rows, make_run, tmp_path, epoch):
    """In an epoch, and at its end: the checkpoint there may be the best."""
    run = tmp_path / "run"
    with stopped_at("_score", lambda _, number, *rest: number == epoch):
        train(rows, SETTINGS, out=run)
    assert kept_scorings(run)[0] == min(epoch + 1, 2)
    train(rows, SETTINGS, out=run, resume=True)
    assert_same_runs(run, make_run())


class Killed(BaseException):
    """In place of a signal that ends the process."""


def killed_in(monkeypatch, name, number):
    """End the process at a call of a function."""
    where = os if name == "link" else early_stopping
    real, calls = getattr(where, name), []

    def method(*given):
        calls.append(given)
        if len(calls) == number:
            raise Killed
        return real(*given)

    monkeypatch.setattr(where, name, method)


@pytest.mark.one_case
@pytest.mark.parametrize(
    "at", [("link", 45), ("link_snapshot", 1), ("link_snapshot", 2), ("remove_snapshots", 4)]
)
def test_a_killed_run_keeps_its_best_epoch(rows, make_run, tmp_path, monkeypatch, at):
    """Before the checkpoint of an epoch is copied, and between two of its files."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_in(patch, *at)
        train(rows, SETTINGS, out=run)
    best_before = {("link_snapshot", 1): [], ("remove_snapshots", 4): [2]}.get(at, [1])
    assert kept_scorings(run) == best_before
    if best_before == [1]:
        assert served_epoch(run) == "epoch 1 (epoch 2 is better: continue the run with --resume)"
    train(rows, SETTINGS, out=run, resume=True)
    assert_same_runs(run, make_run())


@pytest.mark.thorough
def test_a_disk_without_hard_links(rows, make_run, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        train(rows, SETTINGS, out=tmp_path / "run")
    assert_same_runs(tmp_path / "run", make_run())
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_a_damaged_last_checkpoint_of_the_best_epoch(rows, make_run, tmp_path):
    """The run falls back to the epoch before, which it has kept as the best one of then."""
    run = tmp_path / "run"
    train(rows, replace(SETTINGS, epochs=2), out=run)
    assert kept_scorings(run) == [2, 1]
    (run / "checkpoints/2/weights.0.bin").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"best/2/weights\.0\.bin: damaged .*restore a copy, or"):
        evaluate_run(run, rows)
    train(rows, SETTINGS, out=run, resume=True)
    assert_same_runs(run, make_run())


def test_what_is_missing_is_named(rows, make_run, tmp_path, capsys):
    run = shutil.copytree(make_run(), tmp_path / "run")
    shutil.rmtree(run / "checkpoints/best")
    with pytest.raises(InputError, match="best: no checkpoint of epoch 2"):
        train(rows, SETTINGS, out=run, resume=True)
    assert main(["evaluate", str(run), str(rows)]) == 2
    error = capsys.readouterr().err
    assert "best: no checkpoint" in error
    assert error.count("\n") == 1
    (run / "metrics.csv").unlink()
    with pytest.raises(InputError, match=r"early stopping .* 4 scorings"):
        train(rows, SETTINGS, out=run, resume=True)


def test_other_patience_is_another_run(rows, make_run):
    with pytest.raises(InputError, match="early_stopping 2, not 3"):
        train(rows, replace(SETTINGS, early_stopping=3), out=make_run(), resume=True)


def test_a_plain_run_tells_that_its_auc_fell(rows, tmp_path, capsys):
    command = ["train", str(rows), "--out", str(tmp_path / "run"), *ARGUMENTS, "--epochs", "4"]
    assert main(command) == 0
    told, last, _ = capsys.readouterr().out.splitlines()[-3:]
    assert told == (
        "validation AUC fell from 0.70000 after epoch 2 to 0.65000 after epoch 4; "
        "train with --epochs 2, or with --early-stopping 1"
    )
    assert last.startswith("validation AUC 0.65000, ") and "after 4 epochs; run" in last


def rows_of(split, *aucs):
    return [{"epoch": i, f"{split}_auc": auc} for i, auc in enumerate(aucs, 1)]


def test_test_rows_choose_no_epochs():
    plain = replace(SETTINGS, early_stopping=None, validation_fraction=0.0)
    message = end_message(rows_of("test", 0.75, 0.7), plain)
    assert message == (
        "test AUC fell from 0.75000 after epoch 1 to 0.70000 after epoch 2; choose epochs on "
        "validation rows: cowclip train with --validation-fraction 0.1 --early-stopping 1, then "
        "again on all rows with that --epochs"
    )
    for aucs in ((0.7, 0.75), (0.75, 0.7495), (0.75,)):
        assert end_message(rows_of("test", *aucs), plain) is None


def test_the_epoch_that_evaluates_as_in_the_run(rows, tmp_path, monkeypatch):
    """With the AUCs of training: the kept weights score the held-out rows as in their epoch."""
    monkeypatch.undo()
    fast = {"embedding_lr": 0.05, "dense_lr": 0.05, "warmup_epochs": 0.0}
    settings = replace(SETTINGS, overrides=fast, early_stopping=1, epochs=30)
    records = train(rows, settings, out=tmp_path / "run")
    *_, best, last = records
    assert best["validation_auc"] >= last["validation_auc"] and len(records) < 30
    assert max(record["validation_auc"] for record in records) == best["validation_auc"]
    table = probabilities(tmp_path / "run", rows, tmp_path).to_pandas()
    held = table[row_order.validation_mask(len(table), 0.2)]
    assert roc_auc_score(held.label, held.probability) == pytest.approx(
        best["validation_auc"], abs=1e-12
    )
