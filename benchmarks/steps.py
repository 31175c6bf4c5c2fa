"""Training steps in turn with what they are compared with: growing tables, and probes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.bench.random_data import (
    CONTINUOUS,
    NUM_FIELDS,
    criteo_fields,
    random_model,
    random_rows,
)
from cowclip_merlin.bench.settings import vocabulary_option
from cowclip_merlin.loading import DeviceData
from cowclip_merlin.scaling import scale
from cowclip_merlin.settings import Settings, device_option, option
from cowclip_merlin.types import Array, JsonObject, Tensor, Variable
from harness import Benchmark, batch_sizes, in_turn, layers, ratios, summary

if TYPE_CHECKING:
    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.online.events.events import Events
    from cowclip_merlin.online.training.trainer import BatchForm
    from cowclip_merlin.optimizer import CowClip


class Case(NamedTuple):
    """What is timed; "flush" is the update of all rows that `exact` postpones."""

    what: str
    batch: int
    vocabulary: int = 0


Cases = Mapping[Case, Callable[[], float]]
"""Case -> a turn, which returns milliseconds."""

MILLISECONDS = {
    "batch": "{batch:,}",
    "what": "{what}",
    "ms per step (min to max)": "{median:.1f} ({least:.1f} to {most:.1f})",
    "ratio": "{ratio:.2f}",
}


def timed(
    cases: Cases, rounds: int, *, base: Callable[[Case], Case], warm_up: int = 1
) -> list[JsonObject]:
    """Measure the cases in turn: median, range, rounds, and the median ratio to a base case."""
    found = in_turn(cases, rounds, warm_up=warm_up)
    return [
        case._asdict()
        | summary(values)
        | {"ratio": statistics.median(ratios(values, found[base(case)])), "rounds": values}
        for case, values in found.items()
    ]


class Trained:
    """DeepFM with CowClip and rows on the device, one step per call."""

    def __init__(
        self,
        data: DeviceData | BatchForm,
        fields: Mapping[str, int],
        update: str,
        *,
        batch: int = 8192,
        **settings: Any,
    ) -> None:
        from cowclip_merlin.optimizer import CowClip
        from cowclip_merlin.training.train_step import make_train_step

        self.model: CTRModel = random_model("deepfm", dict(fields), **settings)
        self.optimizer: CowClip = CowClip.of(
            replace(scale("criteo", to=batch), warmup_epochs=0),
            update=update,
            embeddings=["embeddings"],
        )
        self.optimizer.create_state(self.model.trainable_variables)
        self.data = data
        self.loss: Variable = compat.tensorflow().Variable(0.0, dtype="float64")
        self.step = make_train_step(self.model, self.optimizer, data, self.loss)

    def wait(self) -> float:
        """Wait until the device is done; return the sum of all losses."""
        return float(self.loss.numpy())

    def flush(self) -> float:
        """Bring all rows up to date; return the seconds."""
        started = time.perf_counter()
        self.optimizer.flush()
        self.optimizer.iterations.numpy()  # waits for the device
        return time.perf_counter() - started


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


def steps_of(settings: GrowingSettings, batch: int) -> Cases:
    """Return both steps on the same batches, each a function that returns milliseconds a step."""
    from cowclip_merlin.online.events.columns import CategoricalColumn, ContinuousColumn
    from cowclip_merlin.online.events.events import Events
    from cowclip_merlin.online.events.features import LogFeatures
    from cowclip_merlin.online.settings import OnlineSettings
    from cowclip_merlin.online.training.trainer import BatchForm, OnlineTrainer
    from cowclip_merlin.training.run_settings import RunSettings

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
    rng, times = np.random.default_rng(2), np.zeros(batch, np.int64)
    numbers = rng.random((batch, CONTINUOUS), np.float32)
    labels = (rng.random(batch) < 0.3).astype(np.int8)
    events = [
        Events(ids=Ids(ids), numbers=numbers, labels=labels, times=times)
        for ids in islice(id_batches(settings, batch), total)
    ]

    def train_fixed(each: Events) -> None:
        labels = each.labels.astype(np.float32)
        fixed.step((each.ids.values.astype(np.int32), each.numbers, labels))

    def steps(train: Callable[[Events], object]) -> Callable[[], float]:
        left = iter(events)

        def run_steps() -> float:
            started = time.perf_counter()
            for each in islice(left, settings.steps):
                train(each)
            return 1e3 * (time.perf_counter() - started) / settings.steps

        return run_steps

    both = {"fixed": train_fixed, "growing": growing.train}
    return {Case(name, batch): steps(train) for name, train in both.items()}


def measure_growing(settings: GrowingSettings) -> JsonObject:
    """A training step with a growing table, beside the same step with a fixed table.

    DeepFM with 26 fields and `update="lazy"`. Both steps see the same ids: most of them by a Zipf
    law of 1.2 among `--known` ids of all fields, and a share of ids that never occurred. The fixed
    table has a row for every id from the start and gets row numbers. The growing one gets 64-bit
    ids. Its step maps them, and creates rows for the new ones. The two are timed in turn, round by
    round.
    """
    rows = []
    for batch in settings.batches:
        cases = steps_of(settings, batch)
        rows += timed(cases, settings.rounds, base=lambda case: case._replace(what="fixed"))
    return {"what": "a step with a growing table, milliseconds", "results": rows}


GROWING = Benchmark(settings=GrowingSettings, measure=measure_growing, text=MILLISECONDS)


@dataclass(frozen=True, kw_only=True)
class DiagnosticsSettings(Settings):
    """What is measured."""

    batches: tuple[int, ...] = batch_sizes(1024, 16384)
    update: str = option("exact", "update of the tables", choices=choices.UPDATES)
    every: int = option(100, "steps between probes, and of a turn", at_least=1)
    vocabulary: int = vocabulary_option(300_000, "ids of all fields together")
    mlp: tuple[int, ...] = layers()
    rounds: int = option(15, "turns and probes of each batch size", at_least=1)
    device: str = device_option()


class Recorded:
    """A model in training, with a recorder that writes into a folder."""

    def __init__(self, settings: DiagnosticsSettings, batch: int, folder: Path) -> None:
        from cowclip_merlin.contrib.diagnostics.probe import make_probe
        from cowclip_merlin.contrib.diagnostics.record import Recorder, compute_deciles
        from cowclip_merlin.training.run_logs import TensorBoard

        fields = criteo_fields(settings.vocabulary)
        self._batch, self._done, self._every = batch, 0, settings.every
        rows = random_rows(max(4 * batch, 65536), fields)
        self._order = np.random.default_rng(0).permutation(len(rows))
        data, update = DeviceData(rows), settings.update
        run = self._run = Trained(data, fields, update, batch=batch, mlp=settings.mlp)
        counts = [np.bincount(ids, minlength=n) for ids, n in zip(rows.ids.T, fields.values())]
        self._recorder = Recorder(
            make_probe(run.model, run.optimizer, run.data),
            compute_deciles(counts, rows=len(rows), batch_size=batch),
            every=settings.every,
            rates=lambda: (1e-4, 1e-3),
            wait=run.wait,
            folder=folder,
        )
        self._recorder.open(0, TensorBoard(folder))

    def turn(self) -> float:
        """Train as many steps as lie between two probes; return the seconds."""
        started = time.perf_counter()
        for _ in range(self._every):
            self._run.step(self._next())
            self._done += 1
        self._run.wait()
        return time.perf_counter() - started

    def probe(self) -> float:
        """Run and write a probe; return the seconds."""
        started = time.perf_counter()
        # The recorder runs at multiples of its interval.
        self._recorder.before_step(
            self._next(), step=self._done, epoch=1, rows=self._done * self._batch
        )
        return time.perf_counter() - started

    def _next(self) -> Tensor:
        first = self._done * self._batch % (len(self._order) - self._batch + 1)
        return compat.tensorflow().constant(self._order[first : first + self._batch])


def measure_diagnostics(settings: DiagnosticsSettings) -> JsonObject:
    """Measure the cost of the diagnostics: a probe, and the steps between two probes, in turn.

    It trains a DeepFM with embeddings of 10 on random rows with power-law ids, as `cowclip bench`.
    A turn has --every steps. A probe reads the batch of the next step, and writes its numbers to a
    CSV file and to TensorBoard. The cost is the median over the rounds of the time of a probe,
    relative to the turn of its round. Both exclude the compilation of the probe, once per run.
    """
    rows = [_cost(settings, batch) for batch in settings.batches]
    return {"what": "cost of diagnostics in training", **asdict(settings), "results": rows}


def _cost(settings: DiagnosticsSettings, batch: int) -> JsonObject:
    with TemporaryDirectory() as folder:
        run = Recorded(settings, batch, Path(folder))
        found = in_turn({"turn": run.turn, "probe": run.probe}, settings.rounds, warm_up=1)
    turns, probes = found["turn"], found["probe"]
    return {
        "batch": batch,
        **summary(ratios(probes, turns)),
        "ms_per_step": 1e3 * statistics.median(turns) / settings.every,
        "ms_per_probe": 1e3 * statistics.median(probes),
        "turns": turns,
        "probes": probes,
    }


DIAGNOSTICS = Benchmark(
    settings=DiagnosticsSettings,
    measure=measure_diagnostics,
    text={
        "batch": "{batch:,}",
        "cost (min to max)": "{median:.2%} ({least:.2%} to {most:.2%})",
        "ms per step": "{ms_per_step:.1f}",
        "ms per probe": "{ms_per_probe:.1f}",
    },
)
