"""Measure rows per second of the loaders and of the training step, in one process.

    python benchmarks/step.py loading [--rows 1000000] [--batch-sizes 1024 131072] [--model deepfm]
        [--rounds 5] [--seconds 2] [--data-memory MB] [--work DIR] [--device auto|cpu|gpu]
        [--json FILE] [--overwrite]

A generated Criteo-format log is prepared once in --work. Resident and streamed rows are loaded as
by `cowclip train`. Streaming gets --data-memory for a third of the rows, and at least for three
batches. Merlin's Loader reads the same folder. The step trains the model with CowClip and dense
updates. In every round, each of them has a turn of the same length. Medians and ratios are over
the rounds. A turn starts with an epoch, so it includes shuffling and the first chunk.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import choices, compat
from cowclip_merlin.checks import check_at_least_one, check_choices, check_positive, check_unique
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    ColumnArrays,
    Data,
    DeviceData,
    StreamedData,
    megabytes_to_bytes,
    open_columns,
    steps_per_epoch,
)
from cowclip_merlin.loading.streamed_data import min_streaming_bytes
from cowclip_merlin.settings import option
from cowclip_merlin.training import RunSettings
from cowclip_merlin.training.build import build_model, build_optimizer
from cowclip_merlin.training.train_step import (
    execution_lengths,
    make_train_function,
    steps_per_execution,
)
from cowclip_merlin.types import JsonObject, Tensor
from cowclip_merlin.workflows import PreparedData
from harness.benchmark import Benchmark
from harness.prepared_log import prepared
from harness.rounds import in_turn, ratios
from harness.tables import markdown

if TYPE_CHECKING:
    from cowclip_merlin.loading.row_order import PackedBatch

Turn = Callable[[], float]
LOADERS = ("resident", "streamed", "merlin", "step")


@dataclass(frozen=True, kw_only=True)
class LoadingSettings:
    """Settings of the measurement.

    Attributes:
        rows: rows of the generated log.
        batches: batch sizes.
        model: name of the model of the step.
        rounds: turns of each loader.
        seconds: minimum length of a turn.
        memory: bytes for the streamed rows; None for a third of all.
        work: folder of the prepared log.

    Raises:
        InputError: if a value is unknown, out of range or given twice.
    """

    rows: int = option(1_000_000, "of the generated log")
    batches: Sequence[int] = option(
        (1024, 131072), "rows per batch", flag="--batch-sizes", nargs="+"
    )
    model: str = option("deepfm", f"one of {', '.join(choices.MODELS)}")
    rounds: int = option(5, "turns of each loader")
    seconds: float = option(2.0, "minimum length of a turn")
    memory: int | None = option(
        None,
        "for the streamed rows (default: a third of all)",
        flag="--data-memory",
        metavar="MB",
        kind=float,
        convert=megabytes_to_bytes,
    )
    work: Path = option(Path("work/loading"), "folder of the prepared log")

    def __post_init__(self) -> None:
        """Reject values that cannot be measured."""
        check_choices("--model", (self.model,), choices.MODELS)
        check_unique({"--batch-sizes": self.batches})
        check_at_least_one(
            {"--rows": self.rows, "--batch-sizes": self.batches, "--rounds": self.rounds}
        )
        check_positive({"--seconds": self.seconds})


def rate(epochs: Callable[[int], Iterator[int]], seconds: float) -> Turn:
    """Return a turn that measures rows per second over epochs until the time is up."""
    epoch = iter(range(1 << 30))

    def turn() -> float:
        rows, started = 0, time.perf_counter()
        while True:
            for size in epochs(next(epoch)):
                rows += size
                if (spent := time.perf_counter() - started) > seconds:
                    return rows / spent

    return turn


def ours(data: Data, batch_size: int) -> Callable[[int], Iterator[int]]:
    """Return epochs that fetch batches like a training step, one per call, without training."""
    tf = compat.tensorflow()

    @tf.function(input_signature=[data.signature], autograph=False)
    def take(batch: PackedBatch) -> Tensor:
        columns = data.unpack(batch)
        return columns.ids.values, columns.numbers, columns.labels

    def epoch(number: int) -> Iterator[int]:
        for batch in data.batches(batch_size, seed=1, epoch=number):
            *_, label = take(batch)
            yield len(label.numpy())  # waits for the device

    return epoch


def merlins(data: PreparedData, batch_size: int) -> Callable[[int], Iterator[int]]:
    """Return epochs of Merlin's Loader over the parquet files, with its shuffling."""
    compat.merlin_models()
    from merlin.io import Dataset
    from merlin.models.tf import Loader

    with compat.quiet_merlin():
        files = Dataset(str(data.path / "train"), engine="parquet", schema=data.schema)
    loader = Loader(files, batch_size=batch_size, shuffle=True)

    def epoch(_: int) -> Iterator[int]:
        for _, label in loader:
            yield len(label.numpy())

    return epoch


def training(
    data: PreparedData, rows: DeviceData, batch_size: int, model: str
) -> Callable[[int], Iterator[int]]:
    """Return epochs of training steps on resident rows, with as many steps per call as training."""
    settings = RunSettings(model=model, batch_size=batch_size, base_batch_size=batch_size)
    values, tf = settings.hyperparameters(data.kind), compat.tensorflow()
    built = build_model(settings, values, data)
    optimizer = build_optimizer(settings, values, data, steps=1000)
    optimizer.create_state(built.trainable_variables)
    loss_sum = tf.Variable(0.0, dtype=tf.float64)
    train = make_train_function(built, optimizer, rows, loss_sum)
    steps = steps_per_epoch(rows.rows, batch_size)
    lengths = [
        n * batch_size for n in execution_lengths(0, steps, steps_per_execution(batch_size), [])
    ]

    def epoch(number: int) -> Iterator[int]:
        for taken in rows.variable_batches(lengths, seed=1, epoch=number):
            train(taken, batch_size)
            loss_sum.numpy()  # waits for the device
            yield len(taken)

    return epoch


def turns(
    data: PreparedData, columns: ColumnArrays, batch_size: int, settings: LoadingSettings
) -> dict[str, Turn]:
    """Return all turns at this batch size."""
    resident = DeviceData(columns)
    memory = settings.memory or columns.bytes_per_row * len(columns) // 3
    memory = max(memory, min_streaming_bytes(len(columns), columns.bytes_per_row, batch_size))
    epochs = {
        "resident": ours(resident, batch_size),
        "streamed": ours(StreamedData(columns, memory=memory), batch_size),
        "merlin": merlins(data, batch_size),
        "step": training(data, resident, batch_size, settings.model),
    }
    return {loader: rate(epoch, settings.seconds) for loader, epoch in epochs.items()}


def results_of(
    data: PreparedData, columns: ColumnArrays, batch_size: int, settings: LoadingSettings
) -> list[JsonObject]:
    """Measure the medians over interleaved rounds, after one warm-up round."""
    speeds = in_turn(turns(data, columns, batch_size, settings), settings.rounds, warm_up=1)
    return [_result(loader, batch_size, speeds) for loader in LOADERS]


def _result(loader: str, batch_size: int, speeds: dict[str, list[float]]) -> JsonObject:
    to_step = ratios(speeds[loader], speeds["step"])
    return {
        "what": loader,
        "batch": batch_size,
        "rows_per_second": round(statistics.median(speeds[loader]), 1),
        "slowest": round(min(speeds[loader]), 1),
        "fastest": round(max(speeds[loader]), 1),
        "ratio_to_step": round(statistics.median(to_step), 2),
        "smallest_ratio": round(min(to_step), 2),
    }


def table(results: list[JsonObject]) -> str:
    """Format the results as Markdown."""
    head = ("batch", "what", "rows/s", "slowest to fastest", "times the step")
    rows = [
        (
            str(r["batch"]),
            r["what"],
            f"{r['rows_per_second']:,.0f}",
            f"{r['slowest']:,.0f} to {r['fastest']:,.0f}",
            f"{r['ratio_to_step']:.1f}",
        )
        for r in results
    ]
    return markdown(head, "rlrrr", rows)


def measure(settings: LoadingSettings) -> JsonObject:
    """Measure every batch size; return a result for JSON.

    Raises:
        InputError: if a batch is larger than the training rows.
    """
    data = prepared(settings.work, settings.rows)
    columns = open_columns(data, "train")
    if max(settings.batches) > len(columns):
        raise InputError(
            f"--batch-sizes {max(settings.batches)}: only {len(columns)} of the "
            f"{settings.rows} rows are training rows; use more --rows"
        )
    results = [r for b in settings.batches for r in results_of(data, columns, b, settings)]
    return {
        "what": "loaders and the training step, rows per second",
        "model": settings.model,
        "rows": len(columns),
        "ids": sum(data.tables.values()),
        "rounds": settings.rounds,
        "seconds_per_turn": settings.seconds,
        "bytes_per_row": columns.bytes_per_row,
        "results": results,
    }


def text(result: JsonObject) -> str:
    """Format the result as text, with the memory of the rows."""
    size, rows = result["bytes_per_row"], result["rows"]
    return (
        f"{table(result['results'])}\n"
        f"{size} bytes per row: {rows:,} rows are {rows * size / 1e6:,.0f} MB\n"
        f"41.3 million rows would be {41.3e6 * size / 1e9:.1f} GB"
    )


BENCHMARK = Benchmark(
    script="step.py loading", about=__doc__, settings=LoadingSettings, measure=measure, text=text
)
