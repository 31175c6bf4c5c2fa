"""Whole runs that the launcher starts: a worker is killed, parts of tables go to other workers."""

import json
import os
import shutil
import threading
import time

import dask
import psutil
import pytest
from distributed import LocalCluster
from processes import ONE_THREAD
from run_commands import sharded
from run_weights import assert_same_bits, metrics_of

from cowclip_merlin.cli import main
from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.training.checkpoint import has_checkpoint

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """The threads of the workers, which they take from here."""
    for name, value in ONE_THREAD.items():
        monkeypatch.setenv(name, value)


def workers_of(parent, rank):
    """The processes of a worker, which are below this process, also under Dask."""
    for process in psutil.Process(parent).children(recursive=True):
        try:
            config = json.loads(process.environ().get("TF_CONFIG", "{}"))
            words = process.cmdline()
        except (psutil.Error, ValueError):
            continue
        if (
            config.get("task", {}).get("index") == rank
            and "cowclip_merlin.launcher.worker" in words
        ):
            yield process


def kill_after_checkpoint(parent, run_folder, rank):
    """Kill a worker as soon as the run has a checkpoint."""
    late = time.monotonic() + 1800
    while not has_checkpoint(run_folder):
        assert time.monotonic() < late
        time.sleep(0.02)
    (victim,) = workers_of(parent, rank)
    victim.kill()


def parts_of(run_folder):
    return sorted((run_folder / "checkpoints/workers").glob("*"))


def auc_of(run_folder, epoch):
    return float(metrics_of(run_folder)[epoch - 1]["test_auc"])


def test_a_worker_killed_under_dask_costs_no_bit(rows, by_two, tmp_path, capfd):
    """The parts of the tables of every worker are those of a run that nothing killed."""
    out, whole = tmp_path / "run", by_two / "sharded"
    settings = RunSettings(
        model="deepfm", batch_size=64, mlp=(8,), update="exact", epochs=2, tables="sharded"
    )
    patient = dask.config.set({"distributed.comm.timeouts.connect": "10 minutes"})
    with patient, LocalCluster(n_workers=2, processes=True, dashboard_address=None) as cluster:
        killer = threading.Thread(target=kill_after_checkpoint, args=(os.getpid(), out, 1))
        killer.start()
        options = {"device": "cpu", "checkpoint_every": 20, "scheduler": cluster.scheduler_address}
        records = train(rows, settings, out=out, restarts=1, **options)
        killer.join()
    told = capfd.readouterr().err
    assert "worker 1 of 2" in told and "killed by signal 9" in told and "restart 1 of 1" in told
    assert len(parts_of(out)) == 1
    assert_same_bits(whole, out)
    for part in parts_of(whole):  # rows, two moments and the last steps of both tables
        assert_same_bits(whole, out, f"checkpoints/workers/{part.name}", least=8)
    assert records[-1]["test_auc"] == pytest.approx(auc_of(whole, 2), abs=1e-6)


def test_one_process_scores_parts_of_tables(rows, by_two, capfd):
    assert main(["evaluate", str(by_two / "sharded"), str(rows), "--device", "cpu"]) == 0
    assert f"{auc_of(by_two / 'sharded', 2):.6f}" in capfd.readouterr().out


def test_others_continue_the_run_of_two(rows, by_two, by_three, tmp_path):
    out = tmp_path / "by_one"
    shutil.copytree(by_two / "sharded", out)
    assert main(sharded(rows, out, 3, "--resume")) == 0
    for run in (out, by_three / "sharded"):
        assert auc_of(run, 2) == auc_of(by_two / "sharded", 2)
    assert abs(auc_of(out, 3) - auc_of(by_three / "sharded", 3)) < 1e-4
    names = [part.name for part in parts_of(by_three / "sharded")]
    assert {"1-of-3", "2-of-3"} <= set(names)
