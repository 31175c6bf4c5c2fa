"""Events per second of online training with several workers on one machine, and what they send.

The stream of the tutorial is produced and joined first. Then each case trains all examples to
the end of the stream by `cowclip online train`. The speed is that after the
first line of metrics.csv, so it leaves out the start and the first ten seconds.
"""

from __future__ import annotations

import csv
import re
import shlex
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.system.machine import processor
from cowclip_merlin.types import JsonObject
from harness import Benchmark, in_turn, output_of

SENT = re.compile(r"sent [\d.]+ MB to \d+ other workers, (\d+) bytes per event")
LOGS = "--features stream.yaml --impressions IMPRESSIONS --actions CLICKS"
PRODUCE = f"produce --generate --events {{}} --times log {LOGS}"
JOIN = f"join {LOGS} --to EXAMPLES --window 1min --negatives 0.5 --state join.state --until-end"
TRAIN = (
    "train --from EXAMPLES --features stream.yaml --out {0}/run --batch-size {1} "
    "--base-batch-size {1} --model deepfm --mlp 100,100 --embedding-lr 3e-3 --dense-lr 3e-3 "
    "--until-end --max-rows 1000000 --workers {2}"
)


@dataclass(frozen=True, kw_only=True)
class StreamWorkerSettings(Settings):
    """What is trained."""

    impressions: int = option(2_000_000, "impressions of the stream", at_least=1)
    batch_sizes: tuple[int, ...] = option((512, 4096), "events per step of all workers", at_least=1)
    workers: tuple[int, ...] = option((1, 2), "numbers of processes", at_least=1)
    rounds: int = option(1, "trainings of each case, in turn", at_least=1)


def measure(settings: StreamWorkerSettings) -> JsonObject:
    """Train all cases in turn; return their speeds for JSON."""
    cases = list(product(settings.batch_sizes, settings.workers))
    with TemporaryDirectory() as folder:
        work = Path(folder)
        for words in (PRODUCE.format(settings.impressions), JOIN):
            _online(work, words)
        found = in_turn({case: partial(_train, work, *case) for case in cases}, settings.rounds)
    results = [
        {
            "batch": batch,
            "workers": n,
            "median": statistics.median(speed for speed, _ in found[batch, n]),
            "events_per_second": [speed for speed, _ in found[batch, n]],
            "sent_per_event": found[batch, n][0][1],
        }
        for batch, n in cases
    ]
    return {"what": "online training by workers", "hardware": processor(), "results": results}


def _train(work: Path, batch: int, workers: int) -> tuple[float, int]:
    """Return events per second, and bytes per event that worker 0 has sent."""
    with TemporaryDirectory(dir=work) as run:
        _online(work, TRAIN.format(run, batch, workers))
        out = Path(run) / "run"
        with (out / "metrics.csv").open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        if len(rows) < 2:
            raise InputError("a training took less than ten seconds; use more --impressions")
        first, last = ((float(row["time"]), int(row["trained"])) for row in (rows[0], rows[-1]))
        sent = SENT.search((out / "train.log").read_text(encoding="utf-8"))
    return (last[1] - first[1]) / (last[0] - first[0]), int(sent[1]) if sent else 0


def _online(work: Path, words: str) -> None:
    command = [sys.executable, "-m", "cowclip_merlin", "online", *shlex.split(words)]
    output_of(f"online {words.split()[0]}", command, cwd=work)


COLUMNS = {
    "batch": "{batch:,}",
    "workers": "{workers}",
    "events per second": "{median:,.0f}",
    "bytes sent per event by worker 0": "{sent_per_event:,}",
}


BENCHMARK = Benchmark(about=__doc__, settings=StreamWorkerSettings, measure=measure, text=COLUMNS)

if __name__ == "__main__":
    BENCHMARK.main()
