"""Makes `fake_workers`, which lies beside the tests, importable; checks that no process is left."""

import os
import sys
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

sys.path.append(str(Path(__file__).parent))
from fake_workers import Fake, is_alive

from cowclip_merlin.launcher import Patience


@pytest.fixture
def fake(tmp_path):
    workers = Fake(tmp_path)
    yield workers
    left = [pid for pid in workers.pids() if is_alive(pid)]
    for pid in left:
        os.kill(pid, 9)
    assert not left, f"processes left: {left}"


@pytest.fixture
def quick():
    """Waits for workers that end by themselves: no wait is spent."""
    return Patience(grace=60, term=60, stop=60)


@pytest.fixture(scope="session")
def cluster():
    options = {"dashboard_address": None, "n_workers": 2, "threads_per_worker": 1}
    # On a busy machine a nanny needs longer than 15 seconds to start a lost worker again.
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"})
    with patient, LocalCluster(processes=True, silence_logs=50, **options) as found:
        yield found


@pytest.fixture
def scheduler(cluster):
    """Its address; both workers are there again after a test that has killed one."""
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=300)
        yield cluster.scheduler_address
        client.wait_for_workers(2, timeout=300)
        assert set(client.run(children).values()) == {0}


def children(dask_worker):
    return len(dask_worker.__dict__.get("cowclip_children", {}))
