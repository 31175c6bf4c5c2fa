"""Whole runs by two workers: their files, failures, signals, and resumption."""

import json
import re
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest
from run_commands import REFUSED, sharded
from run_weights import assert_same_bits, without_times
from run_weights import metrics_of as metrics
from sklearn.metrics import roc_auc_score

from cowclip_merlin.cli import main
from cowclip_merlin.loading.row_order import validation_mask
from cowclip_merlin.training import evaluate_run

pytestmark = pytest.mark.system

LOST = 75  # exit code of a worker that has lost another one


@pytest.fixture(scope="module")
def one(by_one):
    """The folder of a run by one process."""
    return by_one / "whole"


@pytest.fixture(scope="module")
def ended(by_two):
    """How each command ended in each of two workers: exit codes and errors."""
    names = json.loads((by_two / "names.json").read_text())
    results = [json.loads((by_two / f"commands/{rank}.json").read_text()) for rank in (0, 1)]
    return dict(zip(names, zip(*results, strict=True), strict=True))


def assert_same(run, other):
    assert_same_bits(run, other)
    assert without_times(metrics(run)) == without_times(metrics(other))


def test_metrics_equal_those_of_one_process(one, by_two, ended):
    assert [code for code, _ in ended["whole"]] == [0, 0], ended["whole"]
    expected, found = metrics(one), metrics(by_two / "whole")
    assert len(expected) == len(found) == 2
    for a, b in zip(expected, found, strict=True):
        assert a["step"] == b["step"]
        assert abs(float(a["test_auc"]) - float(b["test_auc"])) < 1e-5
        for name in ("train_loss", "test_log_loss", "clipped_share", "mean_clip_factor"):
            np.testing.assert_allclose(float(a[name]), float(b[name]), rtol=1e-3)


def test_new_embeddings_are_those_of_one_process(rows, by_two, ended, tmp_path):
    assert [code for code, _ in ended["reset"]] == [0, 0], ended["reset"]
    assert main(sharded(rows, tmp_path / "one", 2, "--reset-embeddings")) == 0
    for a, b in zip(metrics(tmp_path / "one"), metrics(by_two / "reset"), strict=True):
        for name in ("train_loss", "test_log_loss"):
            np.testing.assert_allclose(float(a[name]), float(b[name]), rtol=1e-3)


def test_a_normalized_run_scores_what_it_serves(rows, by_two, ended):
    """Also if one of the workers has no row of the last batch."""
    assert [code for code, _ in ended["normalized"]] == [0, 0], ended["normalized"]
    (row,) = metrics(by_two / "normalized")
    found = evaluate_run(by_two / "normalized", rows, device="cpu").auc
    assert found == pytest.approx(float(row["test_auc"]), abs=1e-9)


def test_records_equal_those_of_one_process(one, by_two):
    expected, found = (metrics(run, "diagnostics.csv") for run in (one, by_two / "whole"))
    assert len(expected) == len(found) > 30
    for a, b in zip(expected, found, strict=True):
        for name in ("step", "epoch", "scope", "group", "rows", "occurrences"):
            assert a[name] == b[name]
        np.testing.assert_allclose(float(a["w_norm"]), float(b["w_norm"]), rtol=1e-3)
        if a["scope"] == "all":
            assert min(float(a["clipped_share"]), float(b["clipped_share"])) > 0.5


def test_the_first_worker_writes_the_files(one, by_two):
    run = by_two / "whole"
    files = {path.name for path in run.iterdir()}
    assert files == {path.name for path in one.iterdir()} | {"workers"}
    assert len(metrics(run)) == 2
    assert [path.name for path in (run / "workers").iterdir()] == ["1.log"]
    for log in (run / "train.log", run / "workers" / "1.log"):
        assert "epoch 2: train loss" in log.read_text()


def test_the_log_tells_what_a_step_sends(by_two):
    """Also after a resumption, and if this process has trained before."""
    sent = [
        float(found)
        for run in ("whole", "streamed", "stopped")
        for found in re.findall(
            r"sent ([\d.]+) MB a step to", (by_two / run / "train.log").read_text()
        )
    ]
    assert len(sent) == 6 and max(sent) < 1.05 * min(sent)


@pytest.mark.parametrize("name", ["streamed", "partly"])
def test_streamed_rows_give_the_same_bits(by_two, ended, name):
    assert [code for code, _ in ended[name]] == [0, 0], ended[name]
    log = (by_two / name / "workers" / "1.log").read_text()
    assert "train rows streamed" in log
    assert_same(by_two / "whole", by_two / name)


def test_a_signal_to_one_stops_all(by_two, ended):
    folder = by_two
    assert [code for code, _ in ended["stopped"]] == [143, 143], ended["stopped"]
    assert [code for code, _ in ended["resumed"]] == [0, 0], ended["resumed"]
    logs = (folder / "stopped" / "train.log", folder / "stopped" / "workers" / "1.log")
    first, second = (re.search(r"resumed from .*", log.read_text())[0] for log in logs)
    assert first == second and re.search(r": epoch 0, step [1-9]", first)
    assert_same(folder / "whole", folder / "stopped")


def test_all_stop_early_after_the_same_epoch(rows, by_two, ended, tmp_path):
    """The parts of the tables that they keep score the held-out rows as in the best epoch."""
    run = by_two / "stopping"
    assert [code for code, _ in ended["stopping"]] == [0, 0], ended["stopping"]
    aucs = [float(row["validation_auc"]) for row in metrics(run)]
    best = int(np.argmax(aucs)) + 1
    assert 1 < best == len(aucs) - 2 < 28
    for log in (run / "train.log", run / "workers" / "1.log"):
        assert f"keeps the weights of epoch {best} of {best + 2} (best" in log.read_text()
    for part in ("", "workers/1-of-2/"):
        assert (run / f"checkpoints/best/{part}{best}/manifest.json").exists()
    evaluate_run(run, rows, split="train", predictions=tmp_path / "all.parquet", device="cpu")
    table = pq.read_table(tmp_path / "all.parquet").to_pandas()
    held = table[validation_mask(len(table), 0.2)]
    assert roc_auc_score(held.label, held.probability) == pytest.approx(aucs[best - 1], abs=1e-5)


@pytest.mark.parametrize("given", REFUSED, ids=" ".join)
def test_workers_with_other_arguments_are_refused(by_two, ended, given):
    for code, error in ended[" ".join(given)]:
        assert code == 2 and REFUSED[given] in error and error.count("\n") == 1, error
        assert "worker 1 (127.0.0.1:" in error or "larger than" in error
    assert not (by_two / "refused").exists()


def test_workers_with_other_versions_or_data_are_refused(ended):
    for name, words in (
        ("versions", "numpy 0.1, worker 0 (127.0.0.1:"),
        ("data", "has the data "),
        ("no data", "none"),
    ):
        assert all(code == 2 and words in error for code, error in ended[name]), ended[name]
        assert "worker 1 (127.0.0.1:" in ended[name][0][1]


def test_a_killed_worker_ends_the_other(by_two):
    first, last = json.loads((by_two / "killed.json").read_text())
    assert last["code"] == -signal.SIGKILL
    assert first["code"] == LOST and first["seconds"] < 300, first
    assert "lost worker 1 (127.0.0.1:" in first["output"], first["output"][-3000:]


def test_a_killed_run_resumes_with_the_same_bits(by_two, ended):
    assert [code for code, _ in ended["after a kill"]] == [0, 0], ended["after a kill"]
    assert_same(by_two / "whole", by_two / "killed")
