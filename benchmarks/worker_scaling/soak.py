"""Train for long with several workers, and read their memory and threads meanwhile."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from cowclip_merlin.checks import check_at_least_one, check_positive
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import steps_per_epoch
from harness.options import option
from harness.prepared_log import prepared
from worker_scaling.runs import Case, train_words
from worker_scaling.settings import RUN_TABLES

WORKER = "cowclip_merlin.launcher.worker"


@dataclass(frozen=True, kw_only=True)
class WorkerSoakSettings:
    """What is trained, and how often its workers are read.

    Attributes:
        steps: at least this many; whole epochs are trained.
        workers: processes of the run.
        tables: "mirrored" or "sharded".
        rows: of the generated log.
        batch: global batch size.
        sample_every: seconds between two looks at the workers.
        work: folder of the prepared log and of the run.

    Raises:
        InputError: a number is out of range.
    """

    steps: int = option(20_000, "at least this many; whole epochs are trained")
    workers: int = option(2, "processes of the run")
    tables: str = option("mirrored", "where the rows of the tables are", choices=tuple(RUN_TABLES))
    rows: int = option(30_000, "of the generated log")
    batch: int = option(64, "rows per step of all workers", flag="--batch-size")
    sample_every: float = option(1.0, "seconds between two looks at the workers")
    work: Path = option(Path("work/workers"), "folder of the prepared log and the run")

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        check_positive({"--sample-every": self.sample_every})
        check_at_least_one({"--steps": self.steps, "--rows": self.rows, "--batch-size": self.batch})
        if self.workers < 2:
            raise InputError(f"--workers is {self.workers}; give 2 or more")


@dataclass(frozen=True)
class Sample:
    """A worker at one time: seconds since the start, MB of 10^6 bytes, number of threads."""

    seconds: float
    megabytes: float
    threads: int


def sample_run(settings: WorkerSoakSettings) -> dict[str, Any]:
    """Train, and return the samples of each worker.

    Raises:
        InputError: if the run fails, or ends before ten samples.
    """
    data = prepared(settings.work, settings.rows)
    each = steps_per_epoch(data.rows["train"], settings.batch)
    epochs = -(-settings.steps // each)
    case = Case(settings.batch, settings.tables, settings.workers)
    began = time.monotonic()
    with TemporaryDirectory(dir=settings.work) as folder:
        words = train_words(case, data.path, Path(folder) / "run", epochs)
        command = [sys.executable, "-m", "cowclip_merlin", *words]
        samples = _watch(command, Path(folder) / "errors.txt", settings.sample_every)
    if min(map(len, samples), default=0) < 10:
        raise InputError(f"--steps {settings.steps}: too few; the run ended before 10 samples")
    return {
        "steps": epochs * each,
        "seconds": time.monotonic() - began,
        "samples": [[asdict(sample) for sample in worker] for worker in samples],
    }


def _watch(command: list[str], errors: Path, every: float) -> list[list[Sample]]:
    """Run a command, and read its workers until it ends."""
    samples: dict[int, list[Sample]] = {}
    began = time.monotonic()
    with (
        errors.open("wb") as file,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file) as run,
    ):
        parent = psutil.Process(run.pid)
        while run.poll() is None:
            for worker in _workers(parent):
                if found := _read(worker, time.monotonic() - began):
                    samples.setdefault(worker.pid, []).append(found)
            time.sleep(every)
    if run.returncode:
        lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = (lines or ["it printed no error"])[-1]
        raise InputError(f"the run failed with exit code {run.returncode}: {last}")
    return list(samples.values())


def _workers(parent: psutil.Process) -> list[psutil.Process]:
    """Find the workers of a launcher.

    A worker that starts a program is two processes with one command line for a moment. So only
    the launcher's own children count.
    """
    try:
        return [each for each in parent.children() if WORKER in each.cmdline()]
    except psutil.Error:  # it ends
        return []


def _read(worker: psutil.Process, seconds: float) -> Sample | None:
    try:
        memory, threads = worker.memory_info().rss, worker.num_threads()
    except psutil.Error:  # it has ended
        return None
    megabytes = memory / 1e6
    # No running Python is that small: the process starts or ends at this moment.
    return Sample(seconds, megabytes, threads) if megabytes > 1 else None


def growth(samples: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Compare the second fifth of a worker's samples with the last one.

    Args:
        samples: as dicts, sorted by time; 10 or more.

    Returns:
        Two numbers each: medians of "megabytes", largest "threads".
    """
    fifth = len(samples) // 5
    parts = samples[fifth : 2 * fifth], samples[-fifth:]
    return {
        "megabytes": [statistics.median(x["megabytes"] for x in part) for part in parts],
        "threads": [max(x["threads"] for x in part) for part in parts],
    }
