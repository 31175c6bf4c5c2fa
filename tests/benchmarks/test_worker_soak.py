"""The soak test of several workers: its verdict, and a short run of it."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from cowclip_merlin.errors import InputError

pytestmark = pytest.mark.system


def result_of(load, megabytes, threads):
    """The result of a run of one worker with these samples."""
    samples = [
        {"seconds": i, "megabytes": m, "threads": t}
        for i, (m, t) in enumerate(zip(megabytes, threads, strict=True))
    ]
    growth = load("worker_scaling.soak").growth(samples)
    facts = {"steps": 20_000, "seconds": 9.0, "tables": "mirrored"}
    return facts | {"samples": [samples], "growth": [growth]}


@pytest.mark.parametrize(
    ("megabytes", "threads", "words"),
    [
        ([50, 100, 400, 300, 105], [1, 9, 12, 12, 9], None),
        ([50, 100, 100, 100, 106], [1, 9, 9, 9, 9], "worker 0: 100 MB became 106 MB"),
        ([50, 100, 100, 100, 100], [1, 9, 9, 9, 10], "worker 0: 9 threads became 10"),
    ],
)
def test_growth_is_an_error(load, megabytes, threads, words):
    module = load("worker_soak")
    twice = [[x for x in numbers for _ in range(2)] for numbers in (megabytes, threads)]
    result = result_of(load, *twice)
    assert f"| 0 | 100 | {megabytes[-1]} | 9 | {threads[-1]} |" in module.text(result)
    if words is None:
        module.check(result)
        return
    with pytest.raises(InputError, match=words):
        module.check(result)


def test_what_a_worker_starts_is_not_a_worker(load):
    soak = load("worker_scaling.soak")
    code = "import os, time; os.fork(); os.write(1, b'up\\n'); time.sleep(60)"  # whole lines
    command = [sys.executable, "-c", code, soak.WORKER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as worker:
        try:
            assert worker.stdout.readline() == worker.stdout.readline() == b"up\n"
            assert [each.pid for each in soak._workers(psutil.Process())] == [worker.pid]
            assert psutil.Process(worker.pid).children()
        finally:
            os.killpg(worker.pid, signal.SIGKILL)


def test_a_short_run_is_sampled(load, tmp_path):
    settings = load("worker_scaling.soak").WorkerSoakSettings(
        steps=120, rows=2000, sample_every=0.1, work=tmp_path
    )
    result = load("worker_soak").measure(settings)
    assert result["steps"] >= 120
    assert len(result["samples"]) == len(result["growth"]) == 2
    assert all(x["megabytes"] > 1 and x["threads"] > 0 for w in result["samples"] for x in w)


def test_a_failed_run_is_one_line(load, tmp_path):
    soak = load("worker_scaling.soak")
    command = [sys.executable, "-c", "import sys; sys.exit('cowclip: error: no rows')"]
    with pytest.raises(InputError, match="failed with exit code 1: cowclip: error: no rows"):
        soak._watch(command, tmp_path / "errors.txt", 0.1)
