"""A training step with a growing table, beside the same step with a fixed table.

    python benchmarks/step.py growing [--batches 1024 4096 16384] [--known 1000000]
        [--new-share 0.08] [--mlp 400 400 400] [--rounds 9] [--steps 8] [--json FILE] [--overwrite]

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
from typing import TYPE_CHECKING

import numpy as np

import cowclip_merlin as cc
from cowclip_merlin.batch import Ids
from cowclip_merlin.checks import check_at_least_one, check_not_negative
from cowclip_merlin.online.events.columns import CategoricalColumn, ContinuousColumn
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.training.steps.batch_form import BatchForm
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.settings import option
from cowclip_merlin.training.build import build_model_of, build_optimizer_of
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.train_step import make_train_step
from cowclip_merlin.types import JsonObject, Variable
from harness.benchmark import Benchmark
from harness.rounds import in_turn, ratios
from harness.tables import markdown

if TYPE_CHECKING:
    from merlin.schema import Schema

FIELDS, NUMBERS = 26, 13
Result = JsonObject


@dataclass(frozen=True, kw_only=True)
class GrowingStepSettings:
    """What is measured.

    Attributes:
        batches: rows in a step.
        known: ids that are in the tables before, of all fields.
        new_share: share of the ids of a batch that never occurred.
        mlp: hidden widths.
        rounds: rounds that count, after one that does not.
        steps: steps in a round.

    Raises:
        InputError: a number is out of range.
    """

    batches: tuple[int, ...] = option((1024, 4096, 16384), "rows in a step", nargs="+")
    known: int = option(1_000_000, "ids in the tables before")
    new_share: float = option(0.08, "share of ids that never occurred")
    mlp: tuple[int, ...] = option((400, 400, 400), "hidden widths", nargs="+")
    rounds: int = option(9, "rounds that count")
    steps: int = option(8, "steps in a round")

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        counts = {"--batches": self.batches, "--known": self.known, "--mlp": self.mlp}
        check_at_least_one(counts | {"--rounds": self.rounds, "--steps": self.steps})
        check_not_negative({"--new-share": self.new_share})

    def run_settings(self, batch: int) -> RunSettings:
        """Settings of both models."""
        return RunSettings(
            model="deepfm", batch_size=batch, update="lazy", mlp=self.mlp, seed=1, epochs=1
        )


class IdStream:
    """Batches of ids, int64 [b, 26]: known ones by a Zipf law, and new ones in order."""

    def __init__(self, settings: GrowingStepSettings, batch: int) -> None:
        self._rng, self._settings, self._batch = np.random.default_rng(1), settings, batch
        self.per_field = settings.known // FIELDS
        self.next_new = self.per_field

    def known(self) -> np.ndarray:
        """Every known id once, [n, 26]."""
        return np.repeat(np.arange(self.per_field)[:, None], FIELDS, axis=1)

    def batches(self) -> Iterator[np.ndarray]:
        """Batches without end."""
        shape = (self._batch, FIELDS)
        while True:
            ids = self._rng.zipf(1.2, shape) % self.per_field
            new = self._rng.random(shape) < self._settings.new_share
            ids[new] = self.next_new + np.arange(np.count_nonzero(new)) // FIELDS
            self.next_new = int(ids.max()) + 1
            yield ids


def features() -> LogFeatures:
    """Columns like Criteo's."""
    return LogFeatures(
        label="label",
        time="time",
        categorical=tuple(CategoricalColumn(name=f"C{i}") for i in range(FIELDS)),
        continuous=tuple(ContinuousColumn(name=f"I{i}") for i in range(NUMBERS)),
    )


def fixed_schema(rows: int) -> Schema:
    """Schema of the fixed model, with so many rows per field."""
    from merlin.schema import ColumnSchema, Schema, Tags

    domain = {"domain": {"min": 0, "max": rows - 1}}
    ids = [
        ColumnSchema(f"C{i}", dtype=np.int32, tags=[Tags.CATEGORICAL], properties=domain)
        for i in range(FIELDS)
    ]
    numbers = [
        ColumnSchema(f"I{i}", dtype=np.float32, tags=[Tags.CONTINUOUS]) for i in range(NUMBERS)
    ]
    tags = [Tags.TARGET, Tags.BINARY_CLASSIFICATION]
    return Schema([*ids, *numbers, ColumnSchema("label", dtype=np.int8, tags=tags)])


class Steps:
    """Both steps on the same batches."""

    def __init__(self, settings: GrowingStepSettings, batch: int) -> None:
        self._settings, run = settings, settings.run_settings(batch)
        total = (settings.rounds + 2) * settings.steps
        rows = settings.known // FIELDS + total * int(batch * settings.new_share + 10)
        self._growing = OnlineTrainer(
            OnlineSettings(run=run, capacity=FIELDS * (rows + 1)), features()
        )
        values = run.hyperparameters("table")
        model = build_model_of(run, values, fixed_schema(rows), tables="fused")
        optimizer = build_optimizer_of(run, values, fields=None, warmup_steps=0)
        cc.models.attach(model, optimizer)
        optimizer.create_state(model.trainable_variables)
        self._fixed = make_train_step(model, optimizer, BatchForm(FIELDS, NUMBERS), _loss_sum())
        ids = IdStream(settings, batch)
        self._growing.table.admit(ids.known(), 0)
        rng = np.random.default_rng(2)
        numbers, labels = rng.random((batch, NUMBERS), np.float32), rng.random(batch) < 0.3
        found = ids.batches()
        self._batches = [
            Events(
                ids=Ids(next(found)),
                numbers=numbers,
                labels=labels.astype(np.int8),
                times=np.zeros(batch, np.int64),
            )
            for _ in range(total)
        ]
        self._done = {"growing": 0, "fixed": 0}

    def _next(self, kind: str) -> list[Events]:
        first = self._done[kind]
        self._done[kind] += self._settings.steps
        return self._batches[first : self._done[kind]]

    def growing(self) -> float:
        """Milliseconds a step with the growing table, from 64-bit ids."""
        return self._timed("growing", self._growing.train)

    def fixed(self) -> float:
        """Milliseconds a step with the fixed table, from row numbers."""

        def train(events: Events) -> None:
            labels = events.labels.astype(np.float32)
            self._fixed((events.ids.values.astype(np.int32), events.numbers, labels))

        return self._timed("fixed", train)

    def _timed(self, kind: str, train: Callable[..., None]) -> float:
        batches = self._next(kind)
        started = time.perf_counter()
        for events in batches:
            train(events)
        return 1e3 * (time.perf_counter() - started) / len(batches)


def _loss_sum() -> Variable:
    import tensorflow as tf

    return tf.Variable(0.0, dtype="float64", trainable=False)


def measure(settings: GrowingStepSettings) -> Result:
    """Time both steps at each batch size."""
    results = []
    for batch in settings.batches:
        steps = Steps(settings, batch)
        cases = {"fixed": steps.fixed, "growing": steps.growing}
        times = in_turn(cases, settings.rounds, warm_up=1, progress=True)
        medians = {f"{name}_ms": statistics.median(values) for name, values in times.items()}
        ratio = statistics.median(ratios(times["growing"], times["fixed"]))
        results.append({"batch": batch, "times": times, **medians, "ratio": ratio})
    return {"what": "a step with a growing table", "results": results}


def text(result: Result) -> str:
    """Medians as a table."""
    rows = [
        (
            f"{r['batch']:,}",
            f"{r['fixed_ms']:.1f}",
            f"{r['growing_ms']:.1f}",
            f"{r['ratio']:.2f}",
        )
        for r in result["results"]
    ]
    head = ("batch", "fixed table, ms", "growing table, ms", "median ratio of a round")
    return markdown(head, "rrrr", rows)


BENCHMARK = Benchmark(
    script="step.py growing",
    about=__doc__,
    settings=GrowingStepSettings,
    measure=measure,
    text=text,
    device=False,
)
