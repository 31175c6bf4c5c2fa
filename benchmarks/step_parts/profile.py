"""Profile a training step by operation.

    python benchmarks/step.py profile [--model deepfm] [--batch-sizes 1024,65536] [--update exact]
        [--precision float32] [--vocabulary 1000000] [--steps 60] [--seconds 20] [--rounds 5]
        [--device auto|cpu|gpu] [--json FILE] [--overwrite]

The step is that of `cowclip bench`, but with one step per call: random rows with power-law ids,
CowClip, Adam. For each batch size, --steps warm-up steps come first, so that rows miss some steps.
Then the step and the bare MLP (only forward, backward and Adam, in float32) are timed in --rounds
turns each, with --steps steps of each in total. Then TensorFlow's profiler records --steps more.
Each of these parts ends early after --seconds, once it has taken a few steps.

The profile lists operations on the host, and on a GPU also kernels, with those of CuPy. Operations
run on several threads, so their times overlap, and their sum can exceed the step. With a GPU, the
host's operations only launch kernels. Profiled steps are a little slower than others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from math import ceil
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.bench.random_data import check_vocabulary_size, criteo_fields, random_rows
from cowclip_merlin.bench.settings import BenchSettings
from cowclip_merlin.bench.throughput import bare_mlp_train_function, build_model_and_optimizer
from cowclip_merlin.checks import check_at_least_one, check_positive, check_unique
from cowclip_merlin.loading import ColumnArrays, DeviceData
from cowclip_merlin.settings import option
from cowclip_merlin.training.train_step import make_train_step
from cowclip_merlin.types import Array, JsonObject, Tensor
from harness.benchmark import Benchmark
from harness.rounds import in_turn, ratios
from step_parts.profile_report import text
from step_parts.profiler_events import read_space, summary

if TYPE_CHECKING:
    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.optimizer import CowClip

POOL, MOST_BATCHES = 8, 256  # batches before rows repeat
LEAST_STEPS = 3  # minimum steps of a turn that ends early

Run = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """Settings of the measurement.

    Attributes:
        model: name of a model.
        batches: batch sizes.
        update: "dense", "exact" or "lazy".
        precision: precision of the hidden layers: "float32" or "bfloat16".
        vocabulary: ids in all fields together.
        steps: number of warm-up steps, of timed steps and of profiled steps per batch size.
        seconds: time limit of each of these parts.
        rounds: turns of the step and the bare MLP.
        device: "cpu" or "gpu", the device of TensorFlow.

    Raises:
        InputError: if a value is unknown, out of range or given twice.
    """

    model: str = option("deepfm", f"one of {', '.join(choices.MODELS)}")
    batches: Sequence[int] = option((1024, 65536), "rows per step", flag="--batch-sizes")
    update: str = option("exact", ", ".join(choices.UPDATES))
    precision: str = option("float32", f"of the hidden layers: {', '.join(choices.PRECISIONS)}")
    vocabulary: int = option(1_000_000, "ids of all fields together")
    steps: int = option(60, "number of warm-up, of timed and of profiled steps")
    seconds: float = option(20.0, "time limit of each of these parts")
    rounds: int = option(5, "turns of the step and the bare MLP")
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Reject values that cannot be measured."""
        check_unique({"--batch-sizes": self.batches})
        check_at_least_one({"--batch-sizes": self.batches, "--steps": self.steps})
        check_positive({"--seconds": self.seconds})
        check_vocabulary_size("--vocabulary", self.vocabulary)
        BenchSettings(
            models=(self.model,),
            batches=self.batches,
            updates=(self.update,),
            precisions=(self.precision,),
            vocabulary=self.vocabulary,
            rounds=self.rounds,
        )


def measure(settings: ProfileSettings) -> JsonObject:
    """Measure time and profile at every batch size; return a result for JSON."""
    fields = criteo_fields(settings.vocabulary)
    rows = random_rows(POOL * max(settings.batches), fields)
    data = DeviceData(rows)
    kind = (settings.model, settings.update, "auto", "cowclip", settings.precision)
    step = _one_step(*build_model_and_optimizer(*kind, fields), data)
    return {
        "what": "training step: time by operation",
        **asdict(settings),
        "results": [_result(settings, step, batch, rows) for batch in settings.batches],
    }


def _one_step(model: CTRModel, optimizer: CowClip, data: DeviceData) -> Callable[[Tensor], float]:
    """Return a step on the rows of these numbers, one step per call to keep names short."""
    loss_sum = compat.tensorflow().Variable(0.0, dtype="float64")
    run = make_train_step(model, optimizer, data, loss_sum)

    def train(rows: Tensor) -> float:
        run(rows)
        return float(loss_sum.numpy())  # waits for the device

    return train


def _result(
    settings: ProfileSettings, step: Callable[[Tensor], float], batch: int, rows: ColumnArrays
) -> JsonObject:
    taken = batches_of(len(rows), batch)
    feed, bare = cycle(taken), bare_mlp_train_function(batch)

    def train() -> None:
        step(next(feed))

    timing = _timing(settings, train, lambda: bare(taken[0], batch).numpy())
    distinct = mean_distinct(rows.ids, criteo_fields(settings.vocabulary), taken)
    return {
        "batch": batch,
        "distinct_rows": distinct,
        **timing,
        "profile": _profile(settings, train),
    }


def batches_of(rows: int, batch: int) -> list[Array]:
    """Return the row numbers of each batch, from a random order of the rows.

    >>> [len(numbers) for numbers in batches_of(10, 4)]
    [4, 4]
    """
    count = min(rows // batch, MOST_BATCHES)
    order = np.random.default_rng(batch).permutation(rows)[: count * batch]
    return list(order.reshape(count, batch))


def mean_distinct(ids: Array, fields: Mapping[str, int], batches: Sequence[Array]) -> float:
    """Compute the mean number of distinct ids in a batch, in all fields together.

    Args:
        ids: ids of all rows, counted from 0 in each field, [N, F].
        fields: field -> number of rows.
        batches: row numbers of each batch, [b].

    >>> ids = np.array([[0, 0], [0, 1], [0, 0]])
    >>> mean_distinct(ids, {"C1": 1, "C2": 2}, [[0, 1], [0, 2]])
    2.5
    """
    offsets = np.cumsum([0, *fields.values()])[:-1]
    return float(np.mean([len(np.unique(ids[batch] + offsets)) for batch in batches]))


def _timing(settings: ProfileSettings, train: Run, bare: Run) -> JsonObject:
    """Time the step and the bare MLP in turn, after a warm-up of both."""
    timed(train, settings.steps, settings.seconds)
    timed(bare, LEAST_STEPS, settings.seconds)
    rounds = min(settings.rounds, settings.steps)
    steps, seconds = ceil(settings.steps / rounds), settings.seconds / rounds
    cases = {"step": train, "bare_mlp": bare}
    calls = {name: partial(timed, run, steps, seconds) for name, run in cases.items()}
    turns = in_turn(calls, rounds)
    medians = {name: [median(turn) for turn in turns[name]] for name in turns}
    spreads = {name: _spread(turns[name]) for name in turns}
    return spreads | {"step_to_mlp": median(ratios(medians["step"], medians["bare_mlp"]))}


def timed(run: Run, steps: int, seconds: float) -> list[float]:
    """Return the milliseconds of each step; fewer steps if the time is up."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < steps and (len(found) < LEAST_STEPS or time.perf_counter() < end):
        started = time.perf_counter()
        run()
        found.append(1000 * (time.perf_counter() - started))
    return found


def _spread(turns: Sequence[list[float]]) -> JsonObject:
    """Return the median of all steps, and the fastest and slowest turn."""
    medians = [median(turn) for turn in turns]
    every = [ms for turn in turns for ms in turn]
    return {
        "ms": median(every),
        "fastest": min(medians),
        "slowest": max(medians),
        "steps": len(every),
    }


def _profile(settings: ProfileSettings, train: Run) -> JsonObject:
    """Profile some steps; return the values per step."""
    with TemporaryDirectory() as folder:
        with compat.tensorflow().profiler.experimental.Profile(folder):
            found = timed(train, settings.steps, settings.seconds)
        space = read_space(Path(folder))
    ms = mean(found)
    return {"steps": len(found), "ms": ms} | summary(space, len(found), ms)


BENCHMARK = Benchmark(
    script="step.py profile", about=__doc__, settings=ProfileSettings, measure=measure, text=text
)
