"""Makes `fake_workers`, which lies beside the tests, importable; checks that no process is left."""

import os
import sys
from pathlib import Path

import pytest

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
