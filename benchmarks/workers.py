"""Train with several workers: time of a step, and the bytes that they send.

A generated Criteo-format log is prepared once in --work. For every case, `cowclip train` trains a
DeepFM with the update `exact` on this machine, one case after the other. Milliseconds per step are
the median of the epochs after the first one. The bytes are those that the run logs.

All processes share the cores of this machine, so the speed-up says what the exchange costs, not
what several machines gain.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import steps_per_epoch
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.training.run_logs import epoch_seconds, parse_metrics_row, read_metrics
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare
from harness import Benchmark, batch_sizes, in_turn, output_of

RUN_TABLES = {"mirrored": "fused", "sharded": "sharded"}
"""Name of the tables on the pages -> value of `cowclip train --tables`."""
MODEL = RunSettings(model="deepfm", batch_size=1)
SENT = re.compile(r"sent ([\d.]+) MB a step to \d+ other workers")


class Case(NamedTuple):
    """What is trained: global batch size, "mirrored" or "sharded", number of workers."""

    batch: int
    tables: str
    workers: int


class Logged(NamedTuple):
    """Milliseconds per step of each epoch but the first, and bytes per step of worker 0."""

    step_ms: list[float]
    sent: list[float]


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(Settings):
    """What is measured."""

    rows: int = option(300_000, "of the generated log", at_least=1)
    batches: tuple[int, ...] = batch_sizes(1024, 8192)
    workers: tuple[int, ...] = option(
        (1, 2, 3), "processes of a run; 1 must be one of them", at_least=1, unique=True
    )
    epochs: int = option(4, "of a run; the first one is not counted", at_least=2)
    work: Path = option(Path("work/workers"), "folder of the prepared log and the runs")

    def __post_init__(self) -> None:
        """Check each value, and that there is a worker alone."""
        super().__post_init__()
        if 1 not in self.workers:
            given = ",".join(map(str, self.workers))
            raise InputError(f"--workers {given}: add 1, which the others are compared with")


def train_words(case: Case, data: Path, out: Path, epochs: int) -> list[str]:
    """Return the arguments of `cowclip` that train a case."""
    options = {
        "--out": out, "--model": MODEL.model, "--batch-size": case.batch, "--update": "exact",
        "--tables": RUN_TABLES[case.tables], "--epochs": epochs, "--seed": MODEL.seed,
        "--diagnostics-every": 0, "--workers": case.workers,
    }  # fmt: skip
    return ["train", str(data), *(str(word) for pair in options.items() for word in pair)]


def train(case: Case, data: PreparedData, settings: WorkerSettings) -> Logged:
    """Train a case in processes of its own, and read what it logs."""
    with TemporaryDirectory(dir=settings.work) as folder:
        out = Path(folder) / "run"
        words = train_words(case, data.path, out, settings.epochs)
        output_of(str(case), [sys.executable, "-m", "cowclip_merlin", *words])
        return read_logs(out, case, data.rows["train"], settings.epochs)


def read_logs(folder: Path, case: Case, rows: int, epochs: int) -> Logged:
    """Read the metrics and the log of a run of a case on so many training rows."""
    steps = steps_per_epoch(rows, case.batch)
    metrics = read_metrics(folder / "metrics.csv", epochs=epochs)
    seconds = [epoch_seconds(parse_metrics_row(row), rows) for row in metrics]
    log = (folder / "train.log").read_text(encoding="utf-8")
    sent = [1e6 * float(number) for number in SENT.findall(log)]
    if len(seconds) != epochs or len(sent) != (epochs if case.workers > 1 else 0):
        raise InputError(f"{case}: metrics.csv and train.log do not show {epochs} epochs")
    return Logged([1000 * each / steps for each in seconds[1:]], sent[1:])


def prepared(work: Path, rows: int, batches: Sequence[int]) -> PreparedData:
    """Open the prepared log of this size; create it if it is missing.

    Raises:
        InputError: if a batch is larger than the training rows.
    """
    folder = work / f"data-{rows}"
    if not (folder / "dataset.json").exists():
        work.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=work) as temporary:
            log = Path(temporary) / "log.txt"
            generate(log, rows=rows, seed=11)
            prepare(PrepareSettings(kind="criteo", files=(log,), out=folder))
    data = PreparedData.load(folder)
    if max(batches) > data.rows["train"]:
        raise InputError(
            f"--batch-sizes {max(batches)}: only {data.rows['train']} of the {rows} rows are "
            "training rows; use more --rows"
        )
    return data


def measure(settings: WorkerSettings) -> JsonObject:
    """Train all cases; return a result for JSON."""
    data = prepared(settings.work, settings.rows, settings.batches)
    every = product(settings.batches, RUN_TABLES, settings.workers)
    turns = {case: partial(train, case, data, settings) for case in (Case(*x) for x in every)}
    runs = {case: logged for case, (logged,) in in_turn(turns, 1).items()}
    return {
        "what": "training with several workers",
        "rows": data.rows["train"],
        "ids": sum(data.tables.values()),
        "epochs": settings.epochs,
        "results": [_result(case, runs) for case in runs],
    }


def _result(case: Case, runs: Mapping[Case, Logged]) -> JsonObject:
    """Compare a case with a worker alone."""
    mine, first = (statistics.median(runs[x].step_ms) for x in (case, case._replace(workers=1)))
    return {
        **case._asdict(),
        "ms_per_step": mine,
        "epochs_ms": runs[case].step_ms,
        "speed_up": first / mine,
        "mb_per_step": statistics.mean(runs[case].sent or [0.0]) / 1e6,
    }


COLUMNS = {
    "batch": "{batch:,}",
    "tables": "{tables}",
    "workers": "{workers}",
    "ms per step": "{ms_per_step:.1f}",
    "speed-up": "{speed_up:.2f}",
    "MB per step": "{mb_per_step:.3f}",
}
BENCHMARK = Benchmark(about=__doc__, settings=WorkerSettings, measure=measure, text=COLUMNS)

if __name__ == "__main__":
    BENCHMARK.main()
