"""Train with several workers by `cowclip train`, and read what the run has logged."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import batches, open_columns, steps_per_epoch
from cowclip_merlin.training.run_logs import epoch_seconds, parse_metrics_row, read_metrics
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Array, JsonObject
from cowclip_merlin.workflows import PreparedData
from harness.prepared_log import prepared
from harness.rounds import in_turn
from worker_scaling.settings import RUN_TABLES, WorkerSettings
from worker_scaling.traffic import (
    count_dense_weights,
    dense_bytes,
    largest_distinct,
    row_bytes,
)

MODEL = RunSettings(model="deepfm", batch_size=1)
SENT = re.compile(r"sent ([\d.]+) MB a step to \d+ other workers")


@dataclass(frozen=True)
class Case:
    """What is trained: global batch size, "mirrored" or "sharded", number of workers."""

    batch: int
    tables: str
    workers: int


@dataclass(frozen=True)
class RunNumbers:
    """What one run has logged, without its first epoch.

    Attributes:
        step_ms: milliseconds per step of each epoch.
        sent: bytes per step of worker 0 in each epoch.
    """

    step_ms: list[float]
    sent: list[float]


def measure_runs(settings: WorkerSettings) -> JsonObject:
    """Train all cases in turn; return their results for JSON.

    Raises:
        InputError: if a run fails, or a batch is larger than the training rows.
    """
    data = prepared(settings.work, settings.rows)
    rows = data.rows["train"]
    if max(settings.batches) > rows:
        raise InputError(
            f"--batch-sizes {max(settings.batches)}: only {rows} of the {settings.rows} rows are "
            "training rows; use more --rows"
        )
    cases = [
        Case(batch, tables, workers)
        for batch in settings.batches
        for tables in settings.tables
        for workers in settings.workers
    ]
    turns = {case: partial(run, case, data, settings) for case in cases}
    numbers = in_turn(turns, settings.rounds, progress=True)
    dense = count_dense_weights(MODEL.embedding_dim, MODEL.mlp)
    return {
        "rows": rows,
        "ids": sum(data.tables.values()),
        "epochs": settings.epochs,
        "rounds": settings.rounds,
        "dense_weights": dense,
        "results": _results(settings, data, numbers, dense),
    }


def run(case: Case, data: PreparedData, settings: WorkerSettings) -> RunNumbers:
    """Train one case in processes of its own."""
    with TemporaryDirectory(dir=settings.work) as folder:
        train(case, data.path, Path(folder) / "run", settings.epochs)
        return read_numbers(Path(folder) / "run", case, data.rows["train"], settings.epochs)


def train(case: Case, data: Path, out: Path, epochs: int) -> None:
    """Run `cowclip train`.

    Raises:
        InputError: if it fails; the message has its last line.
    """
    command = [sys.executable, "-m", "cowclip_merlin", *train_words(case, data, out, epochs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it printed no error"])[-1]
        raise InputError(f"{case}: the run failed with exit code {done.returncode}: {last}")


def train_words(case: Case, data: Path, out: Path, epochs: int) -> list[str]:
    """Return the arguments of `cowclip` that train a case."""
    options = {
        "--out": out,
        "--model": MODEL.model,
        "--batch-size": case.batch,
        "--update": "exact",
        "--tables": RUN_TABLES[case.tables],
        "--epochs": epochs,
        "--seed": MODEL.seed,
        "--diagnostics-every": 0,
        "--workers": case.workers,
    }
    return ["train", str(data), *(str(word) for pair in options.items() for word in pair)]


def read_numbers(folder: Path, case: Case, rows: int, epochs: int) -> RunNumbers:
    """Read the metrics and the log of a run.

    Args:
        folder: the run folder.
        case: what was trained.
        rows: training rows.
        epochs: epochs of the run.
    """
    steps = steps_per_epoch(rows, case.batch)
    metrics = read_metrics(folder / "metrics.csv", epochs=epochs)
    seconds = [epoch_seconds(parse_metrics_row(row), rows) for row in metrics]
    log = (folder / "train.log").read_text(encoding="utf-8")
    sent = [1e6 * float(number) for number in SENT.findall(log)]
    if len(seconds) != epochs or len(sent) != (epochs if case.workers > 1 else 0):
        raise InputError(f"{case}: metrics.csv and train.log do not show {epochs} epochs")
    return RunNumbers([1000 * each / steps for each in seconds[1:]], sent[1:])


def distinct_in_runs(data: PreparedData, settings: WorkerSettings) -> dict[tuple[int, int], float]:
    """Return u for each batch size and number of workers, over the counted epochs of a run."""
    ids, rows = _table_rows(data), data.rows["train"]
    found = {}
    for batch in settings.batches:
        for workers in settings.workers:
            every = (
                part
                for epoch in range(1, settings.epochs)
                for part in batches(rows, batch, seed=MODEL.seed, epoch=epoch)
            )
            found[batch, workers] = largest_distinct(ids, every, workers)
    return found


def _table_rows(data: PreparedData) -> Array:
    """Return the numbers of the table rows that the training rows read."""
    sizes = [data.cardinalities[name] for name in data.categorical]
    offsets = np.cumsum([0, *sizes])[:-1].astype(np.int32)
    return np.asarray(open_columns(data, "train").ids) + offsets


def _results(
    settings: WorkerSettings,
    data: PreparedData,
    numbers: dict[Case, list[RunNumbers]],
    dense: int,
) -> list[JsonObject]:
    distinct = distinct_in_runs(data, settings)
    medians = {case: _median_ms(runs) for case, runs in numbers.items()}
    return [
        {
            "batch": case.batch,
            "tables": case.tables,
            "workers": case.workers,
            "ms_per_step": medians[case],
            "epochs_ms": [each.step_ms for each in runs],
            "speed_up": medians[Case(case.batch, case.tables, 1)] / medians[case],
            **_traffic(case, runs, distinct[case.batch, case.workers], dense),
        }
        for case, runs in numbers.items()
    ]


def _median_ms(runs: list[RunNumbers]) -> float:
    return statistics.median(ms for each in runs for ms in each.step_ms)


def _traffic(case: Case, runs: list[RunNumbers], distinct: float, dense: int) -> JsonObject:
    """Return the bytes, measured and by the formula; None for the ratios of a worker alone."""
    sent = statistics.mean([x for each in runs for x in each.sent] or [0.0])
    rows = row_bytes(case.tables, distinct, case.workers, MODEL.embedding_dim)
    weights = dense_bytes(dense, case.workers)
    alone = case.workers == 1
    return {
        "distinct": distinct,
        "sent_bytes": sent,
        "formula_bytes": rows + weights,
        "ratio": None if alone else sent / (rows + weights),
        "ratio_of_rows": None if alone else (sent - weights) / rows,
    }
