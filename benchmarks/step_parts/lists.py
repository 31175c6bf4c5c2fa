"""A training step on lists of ids, beside a step with one id per column and as many ids in all.

    python benchmarks/step.py lists [--batches 1024 8192] [--values 10] [--updates lazy exact]
        [--vocabulary 1000000] [--mlp 1] [--rounds 9] [--steps 4] [--json FILE] [--overwrite]

DeepFM with 26 columns and CowClip. A batch of lists has on average `--values` ids per column, from
1 to twice as many less one. The other step has `--values` times the rows. Both look up as many
ids, which are drawn alike, so the time per id compares what lists cost. With the default `--mlp 1`,
the step has almost no work but that of the tables; a wide MLP has `--values` times less to do per
id with lists. The two are timed in turn, round by round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cowclip_merlin import choices
from cowclip_merlin.bench.random_data import criteo_fields, random_model, random_rows
from cowclip_merlin.bench.throughput import model_train_function
from cowclip_merlin.checks import check_at_least_one
from cowclip_merlin.loading import DeviceData
from cowclip_merlin.loading.device_data import to_device
from cowclip_merlin.optimizer import CowClip
from cowclip_merlin.scaling import scale
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.types import JsonObject
from harness.benchmark import Benchmark
from harness.rounds import in_turn, ratios
from harness.tables import markdown

Result = JsonObject


@dataclass(frozen=True, kw_only=True)
class ListSettings(Settings):
    """What is measured.

    Attributes:
        batches: rows in a step with lists.
        values: mean number of ids of a row in each column.
        updates: ways to update the rows of the tables.
        vocabulary: ids of all columns.
        mlp: hidden widths.
        rounds: rounds that count, after one that does not.
        steps: steps in a round.

    Raises:
        InputError: a number is out of range, or an update is unknown.
    """

    batches: tuple[int, ...] = option((1024, 8192), "rows in a step with lists", nargs="+")
    values: int = option(10, "ids per column")
    updates: tuple[str, ...] = option(
        ("lazy", "exact"), "updates of the tables", nargs="+", choices=choices.UPDATES
    )
    vocabulary: int = option(1_000_000, "ids of all columns")
    mlp: tuple[int, ...] = option((1,), "hidden widths", nargs="+")
    rounds: int = option(9, "rounds that count")
    steps: int = option(4, "steps in a round")

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        super().__post_init__()
        counts = {"--batches": self.batches, "--values": self.values, "--mlp": self.mlp}
        check_at_least_one(counts | {"--rounds": self.rounds, "--steps": self.steps})


def timed_step(
    settings: ListSettings, update: str, batch: int, multi_values: int
) -> Callable[[], float]:
    """Return a function that trains some steps, and returns nanoseconds per looked-up id."""
    fields = criteo_fields(settings.vocabulary)
    made = random_rows(batch * settings.steps, fields, multi_values=multi_values)
    model = random_model("deepfm", fields, multi_values=multi_values, mlp=settings.mlp)
    values = replace(scale("criteo", to=8192), warmup_epochs=0)
    optimizer = CowClip.of(values, update=update, embeddings=["embeddings"])
    optimizer.create_state(model.trainable_variables)
    train = model_train_function(model, optimizer, DeviceData(made))
    order = to_device(np.arange(len(made)))

    def run() -> float:
        started = time.perf_counter()
        train(order, batch).numpy()  # waits for the last step
        return 1e9 * (time.perf_counter() - started) / made.ids.size

    return run


def measure(settings: ListSettings) -> Result:
    """Time both steps for each update and batch size."""
    results = []
    for update in settings.updates:
        for batch in settings.batches:
            cases = {
                "one": timed_step(settings, update, batch * settings.values, 0),
                "lists": timed_step(settings, update, batch, settings.values),
            }
            times = in_turn(cases, settings.rounds, warm_up=1, progress=True)
            medians = {f"{name}_ns": statistics.median(each) for name, each in times.items()}
            ratio = statistics.median(ratios(times["lists"], times["one"]))
            results.append(
                {"update": update, "batch": batch, "times": times, **medians, "ratio": ratio}
            )
    return {"what": "a step on lists, nanoseconds per looked-up id", "results": results}


def text(result: Result) -> str:
    """Medians as a table."""
    rows = [
        (
            r["update"],
            f"{r['batch']:,}",
            f"{r['one_ns']:.0f}",
            f"{r['lists_ns']:.0f}",
            f"{r['ratio']:.2f}",
        )
        for r in result["results"]
    ]
    head = ("update", "rows", "one id each, ns per id", "lists, ns per id", "median ratio")
    return markdown(head, "lrrrr", rows)


BENCHMARK = Benchmark(
    script="step.py lists",
    about=__doc__,
    settings=ListSettings,
    measure=measure,
    text=text,
    device=False,
)
