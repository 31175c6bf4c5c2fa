"""Rows per second of the loaders, and of the training step that they feed, in one process.

    python benchmarks/loading.py [--rows 1000000] [--batch-sizes 1024 131072] [--model deepfm]
        [--rounds 5] [--seconds 2] [--data-memory MB] [--work DIR] [--device auto|cpu|gpu]
        [--json FILE] [--overwrite]

A generated Criteo-format log is prepared once in --work. Resident and streamed rows are those of
`cowclip train`, the streamed ones with --data-memory for a third of them (and no less than three
batches need); Merlin's Loader reads the same folder. The step is the model's with CowClip and dense
updates. Every round gives each of them a turn of the same length; medians and ratios are over
the rounds. A turn starts with the epoch, so shuffling and the first chunk are in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.training import RunSettings
from cowclip_merlin.training.build import build_model, build_optimizer
from cowclip_merlin.training.train_step import (
    execution_lengths,
    make_train_function,
    steps_per_execution,
)
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare
from harness.benchmark import Benchmark
from harness.options import option
from harness.rounds import in_turn, ratios
from harness.tables import markdown

Turn = Callable[[], float]
LOADERS = ("resident", "streamed", "merlin", "step")


@dataclass(frozen=True, kw_only=True)
class LoadingSettings:
    """What is measured.

    Attributes:
        rows: of the generated log.
        batches: batch sizes.
        model: name of a model, of the step.
        rounds: turns of each.
        seconds: least length of a turn.
        memory: bytes for the streamed rows; None for a third of all.
        work: folder of the prepared log.

    Raises:
        InputError: a value is unknown, out of range or there twice.
    """

    rows: int = option(1_000_000, "of the generated log")
    batches: Sequence[int] = option(
        (1024, 131072), "rows of a batch", flag="--batch-sizes", nargs="+"
    )
    model: str = option("deepfm", f"one of {', '.join(choices.MODELS)}")
    rounds: int = option(5, "turns of each")
    seconds: float = option(2.0, "least length of a turn")
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
        """Refuse what cannot be measured."""
        check_choices("--model", (self.model,), choices.MODELS)
        check_unique({"--batch-sizes": self.batches})
        check_at_least_one(
            {"--rows": self.rows, "--batch-sizes": self.batches, "--rounds": self.rounds}
        )
        check_positive({"--seconds": self.seconds})


def prepared(work: Path, rows: int) -> PreparedData:
    """The prepared log of this size, made if need be."""
    folder = work / f"data-{rows}"
    if not (folder / "dataset.json").exists():
        work.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=work) as temporary:
            log = Path(temporary) / "log.txt"
            generate(log, rows=rows, seed=11)
            prepare(PrepareSettings(kind="criteo", files=(log,), out=folder))
    return PreparedData.load(folder)


def rate(epochs: Callable[[int], Iterator[int]], seconds: float) -> Turn:
    """A turn: rows per second over one epoch after another, until the time is up."""
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
    """Batches taken as a training step takes them, one in a call, and nothing done with them."""
    tf = compat.tensorflow()

    @tf.function(input_signature=[data.signature])
    def take(batch: Any) -> Any:
        inputs, label = data.unpack(batch)
        return inputs["categorical"], inputs["continuous"], label

    def epoch(number: int) -> Iterator[int]:
        for batch in data.batches(batch_size, seed=1, epoch=number):
            *_, label = take(batch)
            yield len(label.numpy())  # waits for the device

    return epoch


def merlins(data: PreparedData, batch_size: int) -> Callable[[int], Iterator[int]]:
    """Batches of Merlin's Loader, shuffled as it does, over the parquet files."""
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
    """Training steps on resident rows, as many in a call as training makes."""
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
    """Everything that has a turn at this batch size."""
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
) -> list[dict[str, Any]]:
    """Medians of all, over interleaved rounds after one that warms up."""
    speeds = in_turn(turns(data, columns, batch_size, settings), settings.rounds, warm_up=1)
    return [_result(loader, batch_size, speeds) for loader in LOADERS]


def _result(loader: str, batch_size: int, speeds: dict[str, list[float]]) -> dict[str, Any]:
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


def table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
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


def measure(settings: LoadingSettings) -> dict[str, Any]:
    """Everything at every batch size; ready for JSON.

    Raises:
        InputError: a batch is larger than the training rows.
    """
    data = prepared(settings.work, settings.rows)
    columns = open_columns(data, "train")
    if max(settings.batches) > len(columns):
        raise InputError(
            f"--batch-sizes {max(settings.batches)}: of --rows {settings.rows} only {len(columns)} "
            "are training rows; give more rows"
        )
    results = [r for b in settings.batches for r in results_of(data, columns, b, settings)]
    return {
        "what": "loaders and the training step, rows per second",
        "model": settings.model,
        "rows": len(columns),
        "ids": sum(data.cardinalities.values()),
        "rounds": settings.rounds,
        "seconds_per_turn": settings.seconds,
        "bytes_per_row": columns.bytes_per_row,
        "results": results,
    }


def text(result: dict[str, Any]) -> str:
    """The result as text, and what the rows need."""
    size, rows = result["bytes_per_row"], result["rows"]
    return (
        f"{table(result['results'])}\n"
        f"{size} bytes a row: {rows:,} rows are {rows * size / 1e6:,.0f} MB\n"
        f"41.3 million rows would be {41.3e6 * size / 1e9:.1f} GB"
    )


BENCHMARK = Benchmark(
    script=__file__, about=__doc__, settings=LoadingSettings, measure=measure, text=text
)

if __name__ == "__main__":
    BENCHMARK.main()
