"""kill -9 of a replay at random moments: it ends as one that nobody killed.

    KILLS=20 python -m pytest tests/online/replaying/test_kills.py

`KILLS` is how many: 2 without it. The log has 15,000 events for each kill.

Most processes are killed after their first new snapshot, every fourth somewhere in its first
seconds. The next one goes on from the last snapshot. At the end the tables, moments, ids, counters,
dense weights, optimizer states, serving copies and all predictions must be equal.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from cowclip_merlin.synthetic.drifting_log import generate_drifting
from cowclip_merlin.tables.snapshot import numbers

pytestmark = pytest.mark.system

KILLS = int(os.environ.get("KILLS", "2"))
EVENTS = 15_000  # for each kill
START = 8.0  # seconds in which a process begins to train
OPTIONS = (
    "--model", "deepfm", "--batch-size", "1024", "--batch-days", "2", "--sync", "never,5h,30min",
    "--mlp", "100,100", "--max-rows", "10000", "--snapshot-every", "0.5",
)  # fmt: skip


class Replayed:
    """One replay of the log, in as many processes as it takes."""

    def __init__(self, folder, name):
        self.out, log = folder / name, folder / "log.csv"
        self.command = [sys.executable, "-m", "cowclip_merlin", "online", "replay", str(log)]
        self.command += ["--features", f"{log}.yaml", "--out", str(self.out), *OPTIONS]

    def start(self):
        """A process, which goes on from the last snapshot if there is one."""
        resume = ["--resume"] if (self.out / "config.json").exists() else []
        return subprocess.Popen(self.command + resume, stdout=subprocess.DEVNULL)

    def kill(self, seconds, *, early):
        """Kill a process in its first seconds, or so many seconds after its first new snapshot."""
        before, process = self.newest(), self.start()
        while not early and process.poll() is None and self.newest() <= before:
            time.sleep(0.01)
        time.sleep(random.uniform(0, START if early else seconds))
        process.send_signal(signal.SIGKILL)
        return process.wait() == -signal.SIGKILL

    def newest(self):
        return max(numbers(self.out / "snapshots"), default=-1)

    def end(self):
        """SHA-256 of each array of the last snapshot, and the files of predictions."""
        assert self.start().wait() == 0
        newest = self.out / "snapshots" / str(self.newest())
        manifest = json.loads((newest / "manifest.json").read_text(encoding="utf-8"))
        digests = {name: file["sha256"] for name, file in manifest["files"].items()}
        files = {path.name: path.read_bytes() for path in (self.out / "predictions").iterdir()}
        return digests, files


def test_a_killed_replay_ends_as_one_that_nobody_killed(tmp_path):
    random.seed(1)
    generate_drifting(tmp_path / "log.csv", rows=EVENTS * KILLS, days=7, seed=1)
    whole, killed = Replayed(tmp_path, "whole"), Replayed(tmp_path, "killed")
    expected = whole.end()
    seconds = json.loads((whole.out / "replay.json").read_text())["seconds"]
    kills = sum(killed.kill(seconds / KILLS, early=i % 4 == 3) for i in range(KILLS))
    assert kills > 0
    assert killed.end() == expected
    log = (killed.out / "replay.log").read_text()
    assert log.count("resumed after") > 0
