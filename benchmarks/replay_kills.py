"""Kill a replay at random moments with SIGKILL, and compare its end with one that nobody killed.

    python benchmarks/replay_kills.py [--kills 20] [--rows 300000] [--snapshot-every 0.5]
        [--seed 1] [--json FILE] [--overwrite]

The log is generated with drift. Three of four processes are killed at a random moment after their
first new snapshot, the others somewhere in their first seconds. The next process goes on from the
last snapshot. At the end the tables, moments, ids,
counters, dense weights, optimizer states and serving copies (by SHA-256), and all predictions, must
equal those of a replay without a kill. The command fails if they do not.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cowclip_merlin.checks import check_at_least_one, check_positive
from cowclip_merlin.errors import InputError
from cowclip_merlin.synthetic.drifting_log import generate_drifting
from cowclip_merlin.tables.snapshot import numbers
from harness.benchmark import Benchmark
from harness.options import option

Result = dict[str, Any]

START = 8.0
"""Seconds in which a process begins to train; every fourth is killed somewhere in them."""


@dataclass(frozen=True, kw_only=True)
class KillSettings:
    """What is replayed and killed.

    Attributes:
        kills: processes to kill.
        rows: events of the log.
        snapshot_every: seconds between snapshots.
        seed: of the moments.

    Raises:
        InputError: a number is below 1.
    """

    kills: int = option(20, "processes to kill")
    rows: int = option(300_000, "events of the log")
    snapshot_every: float = option(0.5, "seconds between snapshots")
    seed: int = option(1, "seed of the moments")

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        check_at_least_one({"--kills": self.kills, "--rows": self.rows})
        check_positive({"--snapshot-every": self.snapshot_every})


class Replayed:
    """One replay of the log, in as many processes as it takes."""

    def __init__(self, folder: Path, name: str, settings: KillSettings) -> None:
        self.out, log = folder / name, folder / "log.csv"
        self.command = [sys.executable, "-m", "cowclip_merlin", "online", "replay", str(log)]
        self.command += ["--features", f"{log}.yaml", "--out", str(self.out), "--model", "deepfm"]
        self.command += ["--batch-size", "1024", "--batch-days", "2", "--sync", "never,5h,30min"]
        self.command += ["--mlp", "100,100", "--max-rows", "10000"]
        self.command += ["--snapshot-every", str(settings.snapshot_every)]

    def start(self) -> subprocess.Popen[bytes]:
        """Start a process, which goes on from the last snapshot if there is one."""
        resume = ["--resume"] if (self.out / "config.json").exists() else []
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(self.command + resume, **quiet)

    def finish(self) -> None:
        """Run to the end.

        Raises:
            InputError: the replay failed.
        """
        if self.start().wait():
            raise InputError(f"failed: {' '.join(self.command)}; run it to see why")

    def kill(self, seconds: float, *, early: bool) -> bool:
        """Kill a process at a random moment; False if it ended before.

        Args:
            seconds: of training in which the moment lies.
            early: also before the first step; else after the first new snapshot.
        """
        before, process = self._newest(), self.start()
        if early:
            seconds = START
        while not early and process.poll() is None and self._newest() <= before:
            time.sleep(0.01)
        time.sleep(random.uniform(0, seconds))
        process.send_signal(signal.SIGKILL)
        return process.wait() == -signal.SIGKILL

    def _newest(self) -> int:
        """Number of the newest snapshot; -1 if there is none."""
        return max(numbers(self.out / "snapshots"), default=-1)

    def digests(self) -> dict[str, str]:
        """SHA-256 of each array of the last snapshot."""
        newest = self.out / "snapshots" / str(self._newest())
        manifest = json.loads((newest / "manifest.json").read_text(encoding="utf-8"))
        return {name: file["sha256"] for name, file in manifest["files"].items()}

    def predictions(self) -> dict[str, bytes]:
        """The files of predictions."""
        return {path.name: path.read_bytes() for path in (self.out / "predictions").iterdir()}

    def resumed(self) -> list[int]:
        """Events trained at the snapshots that processes went on from."""
        log = (self.out / "replay.log").read_text(encoding="utf-8")
        return [int(n.replace(",", "")) for n in re.findall(r"resumed after ([\d,]+)", log)]


def measure(settings: KillSettings) -> Result:
    """Replay twice, once with kills, and compare.

    Raises:
        InputError: the two differ.
    """
    random.seed(settings.seed)
    with TemporaryDirectory() as name:
        folder = Path(name)
        generate_drifting(folder / "log.csv", rows=settings.rows, days=7, seed=settings.seed)
        whole, killed = (Replayed(folder, name, settings) for name in ("whole", "killed"))
        whole.finish()
        seconds = json.loads((whole.out / "replay.json").read_text())["seconds"]
        kills = 0
        for i in range(settings.kills):
            kills += killed.kill(seconds / settings.kills, early=i % 4 == 3)
        killed.finish()
        equal = {
            "arrays": whole.digests() == killed.digests(),
            "predictions": whole.predictions() == killed.predictions(),
        }
        if not all(equal.values()):
            raise InputError(f"the killed replay ended with other numbers: {equal}")
        facts = {"kills": kills, "resumed_after": killed.resumed(), "seconds": seconds}
        return {"what": "kill -9 of a replay", "arrays": len(whole.digests())} | facts


def text(result: Result) -> str:
    """The result in two lines."""
    return (
        f"killed {result['kills']} times; all {result['arrays']} arrays and all predictions equal "
        f"those of a replay without a kill\nwent on after {result['resumed_after']} events"
    )


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=KillSettings,
    measure=measure,
    text=text,
    device=False,
)

if __name__ == "__main__":
    BENCHMARK.main()
