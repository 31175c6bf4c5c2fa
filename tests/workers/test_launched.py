"""Whole runs that the launcher starts: a worker is killed, parts of tables go to other workers."""

import json
import shutil
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from distributed import LocalCluster
from processes import ONE_THREAD

pytestmark = pytest.mark.system

OPTIONS = "--model deepfm --batch-size 256 --mlp 8 --update exact --checkpoint-every 20"


@pytest.fixture
def command(rows, monkeypatch):
    """`command("train", out, *more)`: words of a command on the prepared folder."""
    for name, value in ONE_THREAD.items():
        monkeypatch.setenv(name, value)

    def words(name, out, *more):
        given = [str(rows), "--out", str(out), *OPTIONS.split()]
        given += ["--device", "cpu"]
        own = given if name == "train" else [str(out), str(rows)]
        return [sys.executable, "-m", "cowclip_merlin", name, *own, *map(str, more)]

    return words


def run(words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


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


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("launched")


@pytest.fixture
def sharded(command, made):
    """A run of two workers with sharded tables, which nothing interrupts."""
    out = made / "sharded"
    if not out.exists():
        run(command("train", out, "--workers", 2, "--tables", "sharded", "--epochs", 2))
    return out


def test_a_killed_worker_costs_no_bit(command, sharded, tmp_path):
    out = tmp_path / "run"
    words = command("train", out, "--workers", 2, "--tables", "sharded", "--epochs", 2)
    with subprocess.Popen(
        [*words, "--restarts", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        kill_after_checkpoint(process.pid, out, rank=1)
        told = process.stderr.read()
    assert process.returncode == 0, told
    assert "worker 1 of 2" in told and "killed by signal 9" in told and "restart 1 of 1" in told
    assert len(parts_of(out)) == 1
    assert_same_bits(sharded, out)


def test_one_process_scores_parts_of_tables(command, sharded):
    told = run(command("evaluate", sharded))
    assert f"{auc_of(sharded, 2):.6f}" in told


def test_three_workers_continue_the_run_of_two(command, sharded, tmp_path):
    more = ("--tables", "sharded", "--epochs", 3, "--resume")
    found = []
    for workers in (2, 3):
        out = tmp_path / f"by_{workers}"
        shutil.copytree(sharded, out)
        run(command("train", out, "--workers", workers, *more))
        found.append(auc_of(out, 3))
        assert auc_of(out, 2) == auc_of(sharded, 2)
    assert abs(found[0] - found[1]) < 1e-4
    names = [part.name for part in parts_of(tmp_path / "by_3")]
    assert {"1-of-3", "2-of-3"} <= set(names)


def test_dask_starts_lost_workers_again(command, tmp_path):
    """With whole tables; equal to the workers of our own launcher."""
    whole = tmp_path / "whole"
    run(command("train", whole, "--workers", 2, "--epochs", 2))
    out = tmp_path / "by_dask"
    with LocalCluster(n_workers=2, processes=True, dashboard_address=None) as cluster:
        words = command("train", out, "--epochs", 2, "--scheduler", cluster.scheduler_address)
        with subprocess.Popen(
            [*words, "--restarts", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            kill_after_checkpoint(psutil.Process().pid, out, rank=1)
            told = process.stderr.read()
    assert process.returncode == 0, told
    assert "restart 1 of 1" in told
    assert_same_bits(whole, out)
