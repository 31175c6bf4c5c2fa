"""Rows per second of the loaders, and of the training step that they feed, in one process.

    python benchmarks/loading.py [--rows 1000000] [--rounds 5] [--json FILE]

A generated Criteo-format log is prepared once in --work. Resident and streamed rows are those of
`cowclip train`, the streamed ones with --data-memory for a third of them (and no less than three
batches need); Merlin's Loader reads the same folder. The step is DeepFM's with CowClip and dense
updates. Every round gives each of them a turn of the same length; medians and ratios are over
the rounds. A turn starts with the epoch, so shuffling and the first chunk are in it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.bench import hardware
from cowclip_merlin.cli import main as cowclip
from cowclip_merlin.files import write_json
from cowclip_merlin.generate import generate
from cowclip_merlin.loading import Columns, Data, DeviceData, StreamedData, bytes_of, open_columns
from cowclip_merlin.loading.stream import least_memory
from cowclip_merlin.training import RunSettings
from cowclip_merlin.training.build import build_model, build_optimizer, choose_device
from cowclip_merlin.training.records import versions
from cowclip_merlin.training.step import make_step
from cowclip_merlin.workflows import PreparedData

Turn = Callable[[], tuple[int, float]]
WHO = ("resident", "streamed", "merlin", "step")


def prepared(work: Path, rows: int) -> PreparedData:
    """The prepared log of this size, made if need be."""
    log, folder = work / f"log-{rows}.txt", work / f"data-{rows}"
    if not (folder / "dataset.json").exists():
        work.mkdir(parents=True, exist_ok=True)
        generate(log, rows=rows, seed=11)
        if cowclip(["prepare", "criteo", str(log), "--out", str(folder)]):
            raise SystemExit(f"{folder}: could not be prepared")
        log.unlink()
    return PreparedData.load(folder)


def counted(epochs: Callable[[int], Iterator[int]], seconds: float) -> Turn:
    """A turn: rows of one epoch after another, and the seconds, until the time is up."""
    epoch = iter(range(1 << 30))

    def turn() -> tuple[int, float]:
        rows, started = 0, time.perf_counter()
        while True:
            for size in epochs(next(epoch)):
                rows += size
                if (spent := time.perf_counter() - started) > seconds:
                    return rows, spent

    return turn


def ours(data: Data, batch_size: int) -> Callable[[int], Iterator[int]]:
    """Batches taken as the training step takes them, and nothing done with them."""
    tf = compat.tensorflow()

    @tf.function(input_signature=[data.signature])
    def take(batch: Any) -> Any:
        inputs, label = data.take(batch)
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
    data: PreparedData, rows: Data, batch_size: int, model: str
) -> Callable[[int], Iterator[int]]:
    """Training steps on resident rows."""
    settings = RunSettings(model=model, batch_size=batch_size, base_batch_size=batch_size)
    values, tf = settings.hyperparameters(data.kind), compat.tensorflow()
    built = build_model(settings, values, data)
    optimizer = build_optimizer(settings, values, data, steps=1000)
    optimizer._create_all_weights(built.trainable_variables)
    loss_sum = tf.Variable(0.0, dtype=tf.float64)
    step = make_step(built, optimizer, rows, loss_sum)

    def epoch(number: int) -> Iterator[int]:
        for i, batch in enumerate(rows.batches(batch_size, seed=1, epoch=number)):
            step(batch)
            loss_sum.numpy()  # waits for the device
            yield min(batch_size, rows.rows - i * batch_size)

    return epoch


def turns(
    data: PreparedData, columns: Columns, batch_size: int, args: argparse.Namespace
) -> dict[str, Turn]:
    """Everything that has a turn at this batch size."""
    resident = DeviceData(columns)
    memory = bytes_of(args.data_memory) or columns.bytes_per_row * len(columns) // 3
    memory = max(memory, least_memory(len(columns), columns.bytes_per_row, batch_size))
    epochs = {
        "resident": ours(resident, batch_size),
        "streamed": ours(StreamedData(columns, memory=memory), batch_size),
        "merlin": merlins(data, batch_size),
        "step": training(data, resident, batch_size, args.model),
    }
    return {who: counted(epoch, args.seconds) for who, epoch in epochs.items()}


def measure(
    data: PreparedData, columns: Columns, batch_size: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Medians of all, over interleaved rounds after one that warms up."""
    chosen = turns(data, columns, batch_size, args)
    speeds: dict[str, list[float]] = {who: [] for who in WHO}
    for number in range(args.rounds + 1):
        for who, turn in chosen.items():
            rows, seconds = turn()
            if number:
                speeds[who].append(rows / seconds)
    return [_result(who, batch_size, speeds) for who in WHO]


def _result(who: str, batch_size: int, speeds: dict[str, list[float]]) -> dict[str, Any]:
    ratios = [a / b for a, b in zip(speeds[who], speeds["step"], strict=True)]
    return {
        "what": who,
        "batch": batch_size,
        "rows_per_second": round(statistics.median(speeds[who]), 1),
        "slowest": round(min(speeds[who]), 1),
        "fastest": round(max(speeds[who]), 1),
        "ratio_to_step": round(statistics.median(ratios), 2),
        "smallest_ratio": round(min(ratios), 2),
    }


def table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| batch | what | rows/s | slowest to fastest | times the step |",
        "|--:|:--|--:|--:|--:|",
    ]
    lines += [
        f"| {r['batch']} | {r['what']} | {r['rows_per_second']:,.0f} | {r['slowest']:,.0f} to "
        f"{r['fastest']:,.0f} | {r['ratio_to_step']:.1f} |"
        for r in results
    ]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the generated log")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1024, 131072])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="least length of a turn")
    parser.add_argument("--model", default="deepfm")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "gpu"))
    parser.add_argument("--data-memory", type=float, metavar="MB", help="default: a third of them")
    parser.add_argument("--work", type=Path, default=Path("work/loading"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here, too")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    args = arguments()
    data = prepared(args.work, args.rows)
    choose_device(args.device)
    columns = open_columns(data, "train")
    results = [r for b in args.batch_sizes for r in measure(data, columns, b, args)]
    size = columns.bytes_per_row
    whole = {
        "what": "loaders and the training step, rows per second",
        "model": args.model,
        "rows": len(columns),
        "ids": sum(data.cardinalities.values()),
        "rounds": args.rounds,
        "seconds_per_turn": args.seconds,
        "bytes_per_row": size,
        "results": results,
        "hardware": hardware(),
        "versions": versions(),
    }
    print(table(results))
    print(f"{size} bytes a row: {len(columns):,} rows are {len(columns) * size / 1e6:,.0f} MB")
    print(f"41.3 million rows would be {41.3e6 * size / 1e9:.1f} GB")
    print(f"{whole['hardware']}; {whole['versions']}")
    if args.json:
        write_json(args.json, whole)


if __name__ == "__main__":
    main()
