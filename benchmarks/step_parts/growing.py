"""A training step with a growing table, beside the same step with a fixed table.

DeepFM with 26 fields and `update="lazy"`. Both steps see the same ids: most of them by a Zipf law
of 1.2 among `--known` ids of all fields, and a share of ids that never occurred. The fixed table
has a row for every id from the start and gets row numbers. The growing one gets 64-bit ids. Its
step maps them, and creates rows for the new ones. The two are timed in turn, round by round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from cowclip_merlin.batch import Ids
from cowclip_merlin.bench.random_data import CONTINUOUS, NUM_FIELDS
from cowclip_merlin.online.events.columns import CategoricalColumn, ContinuousColumn
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.training.steps.batch_form import BatchForm
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Array, JsonObject
from harness import Benchmark, in_turn, ratios, table
from step_parts.trained import Trained, batch_sizes, layers


@dataclass(frozen=True, kw_only=True)
class GrowingSettings(Settings):
    """What is measured."""

    batches: tuple[int, ...] = batch_sizes(1024, 4096, 16384)
    known: int = option(1_000_000, "ids in the tables before", at_least=NUM_FIELDS)
    new_share: float = option(0.08, "share of ids that never occurred", at_least=0, below=1)
    mlp: tuple[int, ...] = layers()
    rounds: int = option(9, "rounds that count, after one that does not", at_least=1)
    steps: int = option(8, "steps in a round", at_least=1)


def id_batches(settings: GrowingSettings, batch: int) -> Iterator[Array]:
    """Make batches of ids, int64 [b, 26]: known ones by a Zipf law, and new ones in order."""
    rng, shape = np.random.default_rng(1), (batch, NUM_FIELDS)
    known = next_new = settings.known // NUM_FIELDS
    while True:
        ids = rng.zipf(1.2, shape) % known
        new = rng.random(shape) < settings.new_share
        ids[new] = next_new + np.arange(np.count_nonzero(new)) // NUM_FIELDS
        next_new = max(next_new, int(ids.max()) + 1)
        yield ids


def steps_of(settings: GrowingSettings, batch: int) -> dict[str, Callable[[], float]]:
    """Return both steps on the same batches, each a function that returns milliseconds a step."""
    total = (settings.rounds + 1) * settings.steps
    known = settings.known // NUM_FIELDS
    rows = known + total * int(batch * settings.new_share + 10)
    run = RunSettings(
        model="deepfm", batch_size=batch, base_batch_size=batch, rule="cowclip", update="lazy",
        mlp=settings.mlp, seed=1, epochs=1,
    )  # fmt: skip
    features = LogFeatures(
        label="label",
        time="time",
        categorical=tuple(CategoricalColumn(name=f"C{i}") for i in range(NUM_FIELDS)),
        continuous=tuple(ContinuousColumn(name=f"I{i}") for i in range(CONTINUOUS)),
    )
    growing = OnlineTrainer(OnlineSettings(run=run, capacity=NUM_FIELDS * (rows + 1)), features)
    growing.table.admit(np.repeat(np.arange(known)[:, None], NUM_FIELDS, axis=1), 0)
    fields = {f"C{i}": rows for i in range(NUM_FIELDS)}
    fixed = Trained(BatchForm(NUM_FIELDS, CONTINUOUS), fields, "lazy", mlp=settings.mlp)
    rng = np.random.default_rng(2)
    numbers, labels = rng.random((batch, CONTINUOUS), np.float32), rng.random(batch) < 0.3
    events = [
        Events(
            ids=Ids(ids),
            numbers=numbers,
            labels=labels.astype(np.int8),
            times=np.zeros(batch, np.int64),
        )
        for ids in islice(id_batches(settings, batch), total)
    ]

    def train_fixed(each: Events) -> None:
        labels = each.labels.astype(np.float32)
        fixed.step((each.ids.values.astype(np.int32), each.numbers, labels))

    def timed(train: Callable[[Events], object]) -> Callable[[], float]:
        left = iter(events)

        def run_steps() -> float:
            started = time.perf_counter()
            for each in islice(left, settings.steps):
                train(each)
            return 1e3 * (time.perf_counter() - started) / settings.steps

        return run_steps

    return {"fixed": timed(train_fixed), "growing": timed(growing.train)}


def measure(settings: GrowingSettings) -> JsonObject:
    """Time both steps at each batch size."""
    results = []
    for batch in settings.batches:
        times = in_turn(steps_of(settings, batch), settings.rounds, warm_up=1)
        medians = {f"{name}_ms": statistics.median(values) for name, values in times.items()}
        ratio = statistics.median(ratios(times["growing"], times["fixed"]))
        results.append({"batch": batch, "times": times, **medians, "ratio": ratio})
    return {"what": "a step with a growing table", "results": results}


COLUMNS = {
    "batch": "{batch:,}",
    "fixed table, ms": "{fixed_ms:.1f}",
    "growing table, ms": "{growing_ms:.1f}",
    "median ratio of a round": "{ratio:.2f}",
}


def text(result: JsonObject) -> str:
    """Medians as a table."""
    return table(COLUMNS, result["results"])


BENCHMARK = Benchmark(about=__doc__, settings=GrowingSettings, measure=measure, text=text)
