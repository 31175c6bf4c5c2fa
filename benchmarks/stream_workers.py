"""Events per second of online training with several workers on one machine, and what they send.

    python benchmarks/stream_workers.py [--impressions 2000000] [--batch-sizes 512,4096]
        [--workers 1,2] [--rounds 1] [--json FILE] [--overwrite]

The stream of the tutorial is produced and joined first. Then each case trains all examples to
the end of the stream by `cowclip online train`. The speed is that after the
first line of metrics.csv, so it leaves out the start and the first ten seconds.
"""

from __future__ import annotations

import csv
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import option
from cowclip_merlin.system.machine import processor
from cowclip_merlin.types import JsonObject
from harness.benchmark import Benchmark
from harness.rounds import in_turn
from harness.tables import markdown

SENT = re.compile(r"sent [\d.]+ MB to \d+ other workers, (\d+) bytes per event")
MODEL = ("--model", "deepfm", "--mlp", "100,100", "--embedding-lr", "3e-3", "--dense-lr", "3e-3")


@dataclass(frozen=True, kw_only=True)
class StreamWorkerSettings:
    """What is trained."""

    impressions: int = option(2_000_000, "impressions of the stream", at_least=1)
    batch_sizes: tuple[int, ...] = option((512, 4096), "events per step of all workers")
    workers: tuple[int, ...] = option((1, 2), "numbers of processes")
    rounds: int = option(1, "trainings of each case, in turn", at_least=1)


@dataclass(frozen=True)
class Speed:
    """Events per second of a training, and bytes per event that worker 0 has sent."""

    events: float
    sent: int


def measure(settings: StreamWorkerSettings) -> JsonObject:
    """Train all cases in turn; return their speeds for JSON.

    Raises:
        InputError: if a command fails, or a training is too short.
    """
    cases = [(batch, n) for batch in settings.batch_sizes for n in settings.workers]
    with TemporaryDirectory() as folder:
        work = Path(folder)
        _make_examples(work, settings.impressions)
        turns = {case: partial(_train, work, *case) for case in cases}
        found = in_turn(turns, settings.rounds, progress=True)
    results = [
        {
            "batch": batch,
            "workers": n,
            "events_per_second": [each.events for each in found[batch, n]],
            "sent_per_event": found[batch, n][0].sent,
        }
        for batch, n in cases
    ]
    return {"what": "online training by workers", "hardware": processor(), "results": results}


def _make_examples(work: Path, impressions: int) -> None:
    _run(
        work, "produce", "--generate", "--events", str(impressions), "--times", "log",
        "--features", "stream.yaml", "--impressions", "IMPRESSIONS", "--actions", "CLICKS",
    )  # fmt: skip
    _run(
        work, "join", "--impressions", "IMPRESSIONS", "--actions", "CLICKS", "--to", "EXAMPLES",
        "--features", "stream.yaml", "--window", "1min", "--negatives", "0.5",
        "--state", "join.state", "--until-end",
    )  # fmt: skip


def _train(work: Path, batch: int, workers: int) -> Speed:
    with TemporaryDirectory(dir=work) as run:
        _run(
            work, "train", "--from", "EXAMPLES", "--features", "stream.yaml", "--out", f"{run}/run",
            "--batch-size", str(batch), "--base-batch-size", str(batch), *MODEL, "--until-end",
            "--max-rows", "1000000", "--workers", str(workers),
        )  # fmt: skip
        out = Path(run) / "run"
        with (out / "metrics.csv").open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        if len(rows) < 2:
            raise InputError("a training took less than ten seconds; use more --impressions")
        first, last = ((float(row["time"]), int(row["trained"])) for row in (rows[0], rows[-1]))
        sent = SENT.search((out / "train.log").read_text(encoding="utf-8"))
    return Speed((last[1] - first[1]) / (last[0] - first[0]), int(sent[1]) if sent else 0)


def _run(work: Path, *words: str) -> None:
    command = [sys.executable, "-m", "cowclip_merlin", "online", *words]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"online {words[0]} failed: {done.stderr.strip()[-500:]}")


def text(result: JsonObject) -> str:
    """A line for each case."""
    rows = [
        [
            f"{each['batch']:,}",
            str(each["workers"]),
            f"{statistics.median(each['events_per_second']):,.0f}",
            f"{each['sent_per_event']:,}" if each["workers"] > 1 else "",
        ]
        for each in result["results"]
    ]
    head = ["batch", "workers", "events per second", "bytes sent per event by worker 0"]
    return markdown(head, "rrrr", rows)


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=StreamWorkerSettings,
    measure=measure,
    text=text,
    device=False,
)

if __name__ == "__main__":
    BENCHMARK.main()
