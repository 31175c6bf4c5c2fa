"""Memory and threads of several workers over many steps.

    SOAK_STEPS=20000 python -m pytest -s tests/workers/test_soak.py

`SOAK_STEPS` is how many steps at least: 1200 without it. `-s` shows memory and threads.

`cowclip train` trains with two workers; each epoch ends with an evaluation and a checkpoint. Of the
time after the first epoch, the second fifth is compared with the last one: no worker may have 5%
more memory or threads. A pool of TensorFlow may start a thread late, so one more is no growth.
"""

import os
import statistics
import subprocess
import sys
import time

import psutil
import pytest

from cowclip_merlin.loading import steps_per_epoch
from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.workflows import PrepareSettings, prepare

pytestmark = pytest.mark.system

STEPS = int(os.environ.get("SOAK_STEPS", "1200"))
ROWS, BATCH = 30_000, 64
SAMPLE_EVERY = 0.1  # seconds
MOST_GROWTH = 1.05
WORKER = "cowclip_merlin.launcher.worker"


def workers_of(launcher):
    """The launcher's own children: a worker that starts a program is two for a moment."""
    try:
        return [each for each in launcher.children() if WORKER in each.cmdline()]
    except psutil.Error:  # it ends
        return []


def watch(command, metrics):
    """MB and threads of each worker, by its number, from the end of the first epoch on."""
    samples = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
        launcher = psutil.Process(run.pid)
        while run.poll() is None:
            time.sleep(SAMPLE_EVERY)
            for worker in workers_of(launcher) if metrics.exists() else ():
                try:
                    found = worker.memory_info().rss / 1e6, worker.num_threads()
                except psutil.Error:  # it has ended
                    continue
                if found[0] > 1:  # no running Python is that small: it ends at this moment
                    samples.setdefault(worker.pid, []).append(found)
    assert run.returncode == 0
    return list(samples.values())


def medians(samples):
    """Of the MB and of the threads."""
    return [statistics.median(values) for values in zip(*samples, strict=True)]


def test_workers_do_not_grow(tmp_path):
    generate(tmp_path / "log.txt", rows=ROWS, seed=11)
    files = (tmp_path / "log.txt",)
    data = prepare(PrepareSettings(kind="criteo", files=files, out=tmp_path / "data"))
    epochs = -(-STEPS // steps_per_epoch(data.rows["train"], BATCH))
    words = ["train", str(data.path), "--out", str(tmp_path / "run"), "--model", "deepfm"]
    words += ["--batch-size", str(BATCH), "--update", "exact", "--epochs", str(epochs)]
    words += ["--mlp", "8", "--diagnostics-every", "0", "--workers", "2", "--device", "cpu"]
    command = [sys.executable, "-m", "cowclip_merlin", *words]
    workers = watch(command, tmp_path / "run" / "metrics.csv")
    assert len(workers) == 2
    for samples in workers:
        fifth = len(samples) // 5
        assert fifth > 1
        first, last = medians(samples[fifth : 2 * fifth]), medians(samples[-fifth:])
        for unit, before, after in zip(("MB", "threads"), first, last, strict=True):
            print(f"{before:.0f} {unit} became {after:.0f}")
            assert after <= MOST_GROWTH * before, unit
