"""Train with several workers: time of a step, and the bytes that they send.

A generated Criteo-format log is prepared once in --work. For every case, `cowclip train` trains a
DeepFM with the update `exact` on this machine, one case after the other. Milliseconds per step are
the median of the epochs after the first one. The bytes are those that the run logs. Beside them is
the formula without padding, for u distinct ids in a worker's part of a batch (the largest of the
workers, mean over the steps) and rows of d + 1 numbers:

- mirrored: (N - 1) u (8 + 4 (d + 1))
- sharded: (N - 1) / N u (8 + 8 (d + 1))
- both: 2 (N - 1) / N * 4 bytes for each dense weight

All processes share the cores of this machine, so the speed-up says what the exchange costs, not
what several machines gain.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.on_data.run_tables import dense_parameters
from cowclip_merlin.loading import batches, open_columns, steps_per_epoch
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.training.run_logs import epoch_seconds, parse_metrics_row, read_metrics
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Array, JsonObject
from cowclip_merlin.workers import Workers
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare
from harness import Benchmark, batch_sizes, in_turn, markdown, output_of

RUN_TABLES = {"mirrored": "fused", "sharded": "sharded"}
"""Name of the tables on the pages -> value of `cowclip train --tables`."""
MODEL = RunSettings(model="deepfm", batch_size=1)
SENT = re.compile(r"sent ([\d.]+) MB a step to \d+ other workers")
ID_AND_COUNT = 8
"""Bytes of an id and its count, which travel with every row."""


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


def largest_distinct(ids: Array, batches: Iterable[Array], workers: int) -> float:
    """Return u: the distinct ids of a worker's part of a batch.

    It is the largest of the workers, as all pad to that, and the mean over the batches.

    >>> largest_distinct(np.array([[1, 2], [1, 3], [1, 2], [1, 2]]), [np.arange(4)], 2)
    3.0
    """
    group = [Workers(rank, ("",) * workers) for rank in range(workers)]
    return float(
        statistics.mean(
            max(len(np.unique(ids[batch[slice(*each.part_of(len(batch)))]])) for each in group)
            for batch in batches
        )
    )


def row_bytes(tables: str, distinct: float, workers: int, dim: int) -> float:
    """Return the bytes of ids, counts, rows and gradients that a worker sends, without padding.

    The wide part has one number for every id besides the embedding of `dim` numbers.

    >>> row_bytes("mirrored", 100, 3, 10), row_bytes("sharded", 90, 3, 10)
    (10400.0, 5760.0)
    """
    others, numbers = workers - 1, 4 * (dim + 1)
    if tables == "mirrored":  # sums of gradients, to all others
        return float(others * distinct * (ID_AND_COUNT + numbers))
    # Ids one way, rows back, gradients the first way again; a worker keeps its own ids.
    return others / workers * distinct * (ID_AND_COUNT + 2 * numbers)


def distinct_in_runs(data: PreparedData, settings: WorkerSettings) -> dict[tuple[int, int], float]:
    """Return u for each batch size and number of workers, over the counted epochs of a run."""
    sizes = [data.cardinalities[name] for name in data.categorical]
    offsets = np.cumsum([0, *sizes])[:-1].astype(np.int32)
    ids, found = np.asarray(open_columns(data, "train").ids) + offsets, {}
    for batch, workers in product(settings.batches, settings.workers):
        every = (
            part
            for epoch in range(1, settings.epochs)
            for part in batches(data.rows["train"], batch, seed=MODEL.seed, epoch=epoch)
        )
        found[batch, workers] = largest_distinct(ids, every, workers)
    return found


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
    dense = dense_parameters(MODEL.model, "deep")
    distinct = distinct_in_runs(data, settings)
    return {
        "what": "training with several workers",
        "rows": data.rows["train"],
        "ids": sum(data.tables.values()),
        "epochs": settings.epochs,
        "dense_weights": dense,
        "results": [
            _result(case, runs, distinct[case.batch, case.workers], dense) for case in runs
        ],
    }


def _result(case: Case, runs: Mapping[Case, Logged], distinct: float, dense: int) -> JsonObject:
    """Compare a case with a worker alone and with the formula; a worker alone has no ratios."""
    mine, first = (statistics.median(runs[x].step_ms) for x in (case, case._replace(workers=1)))
    sent = statistics.mean(runs[case].sent or [0.0])
    rows = row_bytes(case.tables, distinct, case.workers, MODEL.embedding_dim)
    weights = 2 * (case.workers - 1) / case.workers * 4 * dense  # of an all-reduce in a ring
    alone = case.workers == 1
    return {
        **case._asdict(),
        "ms_per_step": mine,
        "epochs_ms": runs[case].step_ms,
        "speed_up": first / mine,
        "distinct": distinct,
        "sent_bytes": sent,
        "formula_bytes": rows + weights,
        "ratio": None if alone else sent / (rows + weights),
        "ratio_of_rows": None if alone else (sent - weights) / rows,
    }


def text(result: JsonObject) -> str:
    """Format the result: one row for each case."""
    head = (
        "batch", "tables", "workers", "ms per step", "speed-up", "MB per step", "formula, MB",
        "measured / formula", "rows alone",
    )  # fmt: skip
    rows = []
    for r in result["results"]:
        cells = [f"{r[name] / 1e6:.3f}" for name in ("sent_bytes", "formula_bytes")]
        cells += [f"{r[name] or 0:.3f}" for name in ("ratio", "ratio_of_rows")]
        cells = cells if r["workers"] > 1 else [""] * 4
        first = (f"{r['batch']:,}", r["tables"], str(r["workers"]))
        rows.append((*first, f"{r['ms_per_step']:.1f}", f"{r['speed_up']:.2f}", *cells))
    return markdown(head, "rlrrrrrrr", rows)


BENCHMARK = Benchmark(about=__doc__, settings=WorkerSettings, measure=measure, text=text)

if __name__ == "__main__":
    BENCHMARK.main()
