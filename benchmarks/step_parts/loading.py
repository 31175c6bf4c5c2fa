"""Measure rows per second of the loaders and of the training step, in one process.

A generated Criteo-format log is prepared once in --work. Resident and streamed rows are loaded as
by `cowclip train`. Streaming gets memory for a third of the rows, and at least for three batches.
Merlin's Loader reads the same folder. The step trains DeepFM with CowClip and dense updates. In
every round, each of them has a turn of the same length. Medians and ratios are over the rounds. A
turn starts with an epoch, so it includes shuffling and the first chunk.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.loading import (
    ColumnArrays,
    Data,
    DeviceData,
    StreamedData,
    open_columns,
    steps_per_epoch,
)
from cowclip_merlin.loading.streamed_data import min_streaming_bytes
from cowclip_merlin.settings import Settings, device_option, option
from cowclip_merlin.training import RunSettings
from cowclip_merlin.training.build import build_model, build_optimizer
from cowclip_merlin.training.train_step import (
    execution_lengths,
    make_train_function,
    steps_per_execution,
)
from cowclip_merlin.types import JsonObject, Tensor
from cowclip_merlin.workflows import PreparedData
from harness import Benchmark, in_turn, prepared, ratios, table
from step_parts.trained import batch_sizes

if TYPE_CHECKING:
    from cowclip_merlin.loading.row_order import PackedBatch

Epochs = Callable[[int], Iterator[int]]
"""Yields the rows of each batch, or of each call, of an epoch."""


@dataclass(frozen=True, kw_only=True)
class LoadingSettings(Settings):
    """What is measured."""

    rows: int = option(1_000_000, "of the generated log", at_least=1)
    batches: tuple[int, ...] = batch_sizes(1024, 131072)
    rounds: int = option(5, "turns of each loader", at_least=1)
    seconds: float = option(2.0, "minimum length of a turn", above=0)
    work: Path = option(Path("work/loading"), "folder of the prepared log")
    device: str = device_option()


def turn_of(epochs: Epochs, seconds: float) -> Callable[[], float]:
    """Return a turn that measures rows per second over epochs until the time is up."""
    numbers = count()

    def turn() -> float:
        rows, started = 0, time.perf_counter()
        while True:
            for size in epochs(next(numbers)):
                rows += size
                if (spent := time.perf_counter() - started) > seconds:
                    return rows / spent

    return turn


def ours(data: Data, batch_size: int) -> Epochs:
    """Return epochs that fetch batches like a training step, one per call, without training."""

    @compat.tensorflow().function(input_signature=[data.signature], autograph=False)
    def take(batch: PackedBatch) -> Tensor:
        columns = data.unpack(batch)
        return columns.ids.values, columns.numbers, columns.labels

    def epoch(number: int) -> Iterator[int]:
        for batch in data.batches(batch_size, seed=1, epoch=number):
            yield len(take(batch)[2].numpy())  # waits for the device

    return epoch


def merlins(data: PreparedData, batch_size: int) -> Epochs:
    """Return epochs of Merlin's Loader over the parquet files, with its shuffling."""
    compat.merlin_models()
    from merlin.io import Dataset
    from merlin.models.tf import Loader

    with compat.quiet_merlin():
        files = Dataset(str(data.path / "train"), engine="parquet", schema=data.schema)
    loader = Loader(files, batch_size=batch_size, shuffle=True)
    return lambda _: (len(label.numpy()) for _, label in loader)


def training(data: PreparedData, rows: DeviceData, batch_size: int) -> Epochs:
    """Return epochs of training steps on resident rows, with as many steps per call as training."""
    settings = RunSettings(model="deepfm", batch_size=batch_size, base_batch_size=batch_size)
    values = settings.hyperparameters(data.kind)
    built = build_model(settings, values, data)
    optimizer = build_optimizer(settings, values, data, steps=1000)
    optimizer.create_state(built.trainable_variables)
    loss_sum = compat.tensorflow().Variable(0.0, dtype="float64")
    train = make_train_function(built, optimizer, rows, loss_sum)
    steps, most = steps_per_epoch(rows.rows, batch_size), steps_per_execution(batch_size)
    lengths = [n * batch_size for n in execution_lengths(0, steps, most, [])]

    def epoch(number: int) -> Iterator[int]:
        for taken in rows.variable_batches(lengths, seed=1, epoch=number):
            train(taken, batch_size)
            loss_sum.numpy()  # waits for the device
            yield len(taken)

    return epoch


def speeds_of(
    data: PreparedData, columns: ColumnArrays, batch: int, settings: LoadingSettings
) -> list[JsonObject]:
    """Measure the medians over interleaved rounds, after one warm-up round."""
    resident, size = DeviceData(columns), columns.bytes_per_row
    memory = max(size * len(columns) // 3, min_streaming_bytes(len(columns), size, batch))
    epochs = {
        "resident": ours(resident, batch),
        "streamed": ours(StreamedData(columns, memory=memory), batch),
        "merlin": merlins(data, batch),
        "step": training(data, resident, batch),
    }
    turns = {loader: turn_of(each, settings.seconds) for loader, each in epochs.items()}
    speeds = in_turn(turns, settings.rounds, warm_up=1)
    to_step = {loader: ratios(speeds[loader], speeds["step"]) for loader in speeds}
    return [
        {
            "what": loader,
            "batch": batch,
            "rows_per_second": round(statistics.median(each), 1),
            "slowest": round(min(each), 1),
            "fastest": round(max(each), 1),
            "ratio_to_step": round(statistics.median(to_step[loader]), 2),
            "smallest_ratio": round(min(to_step[loader]), 2),
        }
        for loader, each in speeds.items()
    ]


def measure(settings: LoadingSettings) -> JsonObject:
    """Measure every batch size; return a result for JSON."""
    data = prepared(settings.work, settings.rows, settings.batches)
    columns = open_columns(data, "train")
    return {
        "what": "loaders and the training step, rows per second",
        "rows": len(columns),
        "ids": sum(data.tables.values()),
        "rounds": settings.rounds,
        "seconds_per_turn": settings.seconds,
        "bytes_per_row": columns.bytes_per_row,
        "results": [r for b in settings.batches for r in speeds_of(data, columns, b, settings)],
    }


COLUMNS = {
    "batch": "{batch}",
    "what": "{what}",
    "rows/s": "{rows_per_second:,.0f}",
    "slowest to fastest": "{slowest:,.0f} to {fastest:,.0f}",
    "times the step": "{ratio_to_step:.1f}",
}


def text(result: JsonObject) -> str:
    """Format the result as Markdown, with the memory of the rows."""
    size = result["bytes_per_row"]
    memory = f"{size} bytes per row; 41.3 million rows would be {41.3e6 * size / 1e9:.1f} GB"
    return f"{table(COLUMNS, result['results'])}\n{memory}"


BENCHMARK = Benchmark(about=__doc__, settings=LoadingSettings, measure=measure, text=text)
