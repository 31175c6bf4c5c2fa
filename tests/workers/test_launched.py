"""Whole runs that the launcher starts: a worker is killed, parts of tables go to other workers."""

import json
import os
import shutil
import threading
import time

import dask
import numpy as np
import psutil
import pytest
from distributed import LocalCluster
from processes import ONE_THREAD
from run_commands import sharded

from cowclip_merlin.cli import main
from cowclip_merlin.training import RunSettings, train

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """The threads of the workers, which they take from here."""
    for name, value in ONE_THREAD.items():
        monkeypatch.setenv(name, value)


def workers_of(parent, rank):
    """The processes of a worker: those below a process, or, under Dask, of this user."""
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
    while not list(run_folder.glob("checkpoints/ckpt-*.index")):
        assert time.monotonic() < late
        time.sleep(0.02)
    (victim,) = workers_of(parent, rank)
    victim.kill()


def last_checkpoint(folder):
    import tensorflow as tf

    files = sorted(folder.glob("ckpt-*.index"), key=lambda x: int(x.stem.split("-")[1]))
    reader = tf.train.load_checkpoint(str(files[-1])[: -len(".index")])
    names = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name in names if not name.startswith("_")}


def assert_same_bits(one, other):
    """All weights and all optimizer state of both runs, in the parts of every worker."""
    folders = ["checkpoints", *(f"checkpoints/workers/{x.name}" for x in parts_of(one))]
    for folder in folders:
        first, second = last_checkpoint(one / folder), last_checkpoint(other / folder)
        assert first.keys() == second.keys() and len(first) > 20
        for name, value in first.items():
            if name.startswith("save_counter"):
                continue
            assert np.asarray(value).tobytes() == np.asarray(second[name]).tobytes(), name


def parts_of(run_folder):
    return sorted((run_folder / "checkpoints/workers").glob("*"))


def auc_of(run_folder, epoch):
    lines = (run_folder / "metrics.csv").read_text().splitlines()
    values = dict(zip(lines[0].split(","), lines[epoch].split(","), strict=True))
    return float(values["test_auc"])


def test_a_killed_worker_costs_no_bit(rows, by_two, tmp_path, capfd):
    out = tmp_path / "run"
    killer = threading.Thread(target=kill_after_checkpoint, args=(os.getpid(), out, 1))
    killer.start()
    code = main(sharded(rows, out, 2, "--workers", "2", "--restarts", "1"))
    killer.join()
    told = capfd.readouterr().err
    assert code == 0, told
    assert "worker 1 of 2" in told and "killed by signal 9" in told and "restart 1 of 1" in told
    assert len(parts_of(out)) == 1
    assert_same_bits(by_two / "sharded", out)


def test_a_dask_cluster_trains_the_same_bits(rows, by_two, tmp_path):
    settings = RunSettings(
        model="deepfm", batch_size=64, mlp=(8,), update="exact", epochs=2, tables="sharded"
    )
    patient = dask.config.set({"distributed.comm.timeouts.connect": "10 minutes"})
    with patient, LocalCluster(n_workers=2, processes=True, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        options = {"device": "cpu", "checkpoint_every": 20, "scheduler": address}
        records = train(rows, settings, out=tmp_path / "run", **options)
    assert_same_bits(by_two / "sharded", tmp_path / "run")
    assert records[-1]["test_auc"] == pytest.approx(auc_of(by_two / "sharded", 2), abs=1e-6)


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
