"""Measure the cost of the diagnostics: training steps with and without them, in turn.

    python benchmarks/step.py diagnostics [--batch-sizes 1024,16384] [--update exact] [--every 100]
        [--vocabulary 300000] [--mlp 400,400,400] [--rounds 5] [--seconds 60]
        [--device auto|cpu|gpu] [--json FILE] [--overwrite]

It trains a DeepFM with embeddings of 10 on random rows with power-law ids, as `cowclip bench`. A
turn has --every steps. With diagnostics, a probe runs before one of them and writes its numbers to
a CSV file and to TensorBoard. Turns with and without diagnostics alternate in one process, and each
comes first in every second round. The cost is the median over the rounds of their ratio, minus 1.
Each batch size has at least --rounds rounds, and more until --seconds have passed.

On a shared machine, this ratio varies by more than the cost. So the probe is also timed alone.
"probe, steps" is the median time of a probe divided by that of a step. Divided by --every, it is a
second estimate of the cost. Both exclude the compilation of the probe, once per run, which is
reported as "first probe".
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.bench.random_data import (
    check_vocabulary_size,
    criteo_fields,
    random_model,
    random_rows,
)
from cowclip_merlin.checks import check_at_least_one, check_choices, check_unique
from cowclip_merlin.diagnostics.row_norms import compute_deciles
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays, DeviceData
from cowclip_merlin.scaling import scale
from cowclip_merlin.settings import option
from cowclip_merlin.types import JsonObject, Tensor
from harness.benchmark import Benchmark
from harness.rounds import ratios
from harness.tables import markdown

if TYPE_CHECKING:
    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.optimizer import CowClip

IN_JSON = ("update", "every", "vocabulary", "rounds", "seconds")


@dataclass(frozen=True, kw_only=True)
class DiagnosticsSettings:
    """Settings of the measurement.

    Attributes:
        batches: batch sizes.
        update: "dense", "exact" or "lazy".
        every: steps between probes, and steps of a turn.
        vocabulary: ids of all fields together.
        mlp: widths of the hidden layers.
        rounds: minimum number of rounds per batch size.
        seconds: minimum time per batch size.

    Raises:
        InputError: if a value is unknown, out of range or given twice.
    """

    batches: Sequence[int] = option((1024, 16384), "rows per step", flag="--batch-sizes")
    update: str = option("exact", ", ".join(choices.UPDATES))
    every: int = option(100, "steps between probes, and of a turn")
    vocabulary: int = option(300_000, "ids of all fields together")
    mlp: tuple[int, ...] = option((400, 400, 400), "widths of the hidden layers")
    rounds: int = option(5, "minimum number per batch size")
    seconds: float = option(60.0, "continue with rounds until this many have passed")

    def __post_init__(self) -> None:
        """Reject values that cannot be measured."""
        check_choices("--update", (self.update,), choices.UPDATES)
        check_at_least_one({"--batch-sizes": self.batches, "--mlp": self.mlp})
        check_at_least_one({"--every": self.every, "--rounds": self.rounds})
        check_unique({"--batch-sizes": self.batches})
        if not 0 <= self.seconds < float("inf"):
            raise InputError(f"--seconds is {self.seconds:g}; give 0 or more")
        check_vocabulary_size("--vocabulary", self.vocabulary)


@dataclass
class Times:
    """Seconds for one batch size.

    Attributes:
        plain: turns without diagnostics.
        watched: turns with diagnostics.
        probes: single probes.
        first: the first probe, with its compilation.
    """

    plain: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    first: float = 0.0


class RecordedTraining:
    """A model in training, with a recorder.

    Args:
        settings: settings of the measurement.
        batch: rows per step.
        folder: folder for the recorder's files.
    """

    def __init__(self, settings: DiagnosticsSettings, batch: int, folder: Path) -> None:
        from cowclip_merlin.training.run_logs import TensorBoard
        from cowclip_merlin.training.train_step import make_train_step

        tf, fields = compat.tensorflow(), criteo_fields(settings.vocabulary)
        self._batch, self._done, self._every = batch, 0, settings.every
        rows = random_rows(max(4 * batch, 65536), fields)
        self._data, self._order = DeviceData(rows), np.random.default_rng(0).permutation(len(rows))
        model = random_model("deepfm", fields, mlp=settings.mlp)
        optimizer = _optimizer(settings, batch)
        optimizer.create_state(model.trainable_variables)
        self._loss_sum = tf.Variable(0.0, dtype=tf.float64)
        self._step = make_train_step(model, optimizer, self._data, self._loss_sum)
        self._recorder = _recorder(model, optimizer, self, rows, fields, folder)
        self._recorder.open(0, TensorBoard(folder))

    def wait(self) -> None:
        """Wait until the device is done."""
        self._loss_sum.numpy()

    def turn(self, steps: int) -> float:
        """Train this many steps and return the seconds."""
        started = time.perf_counter()
        for _ in range(steps):
            self._step(self._next())
            self._done += 1
        self.wait()
        return time.perf_counter() - started

    def probe(self) -> float:
        """Run and write a probe, and return the seconds."""
        started = time.perf_counter()
        # The recorder runs at multiples of its interval, independent of earlier steps.
        step = self._done // self._every * self._every
        self._recorder.before_step(self._next(), step=step, epoch=1, rows=step * self._batch)
        return time.perf_counter() - started

    def _next(self) -> Tensor:
        first = self._done * self._batch % (len(self._order) - self._batch + 1)
        return compat.tensorflow().constant(self._order[first : first + self._batch])


def _optimizer(settings: DiagnosticsSettings, batch: int) -> CowClip:
    from cowclip_merlin.optimizer import CowClip

    return CowClip.of(
        replace(scale("criteo", to=batch), warmup_epochs=0),
        update=settings.update,
        embeddings=["embeddings"],
        fields=criteo_fields(settings.vocabulary),
    )


def _recorder(
    model: CTRModel,
    optimizer: CowClip,
    run: RecordedTraining,
    rows: ColumnArrays,
    fields: dict[str, int],
    folder: Path,
) -> Any:
    from cowclip_merlin.diagnostics.probe import make_probe
    from cowclip_merlin.diagnostics.recorder import Recorder

    counts = [np.bincount(ids, minlength=n) for ids, n in zip(rows.ids.T, fields.values())]
    return Recorder(
        make_probe(model, optimizer, run._data),
        compute_deciles(counts, rows=len(rows), batch_size=run._batch),
        every=run._every,
        rates=lambda: (1e-4, 1e-3),
        wait=run.wait,
        folder=folder,
    )


def measure(settings: DiagnosticsSettings) -> JsonObject:
    """Measure every batch size; return a result for JSON."""
    results = []
    for batch in settings.batches:
        with tempfile.TemporaryDirectory() as folder:
            times = _times(settings, RecordedTraining(settings, batch, Path(folder)))
        results.append(_result(settings, batch, times))
    return {
        "what": "cost of diagnostics in training",
        **{name: getattr(settings, name) for name in IN_JSON},
        "mlp": list(settings.mlp),
        "results": results,
    }


def _times(settings: DiagnosticsSettings, run: RecordedTraining) -> Times:
    times = Times()
    run.turn(2)
    times.first = run.probe()
    started = time.perf_counter()
    while len(times.plain) < settings.rounds or time.perf_counter() - started < settings.seconds:
        for watched in (False, True) if len(times.plain) % 2 else (True, False):
            probe = run.probe() if watched else 0.0
            seconds = probe + run.turn(settings.every)
            (times.watched if watched else times.plain).append(seconds)
            times.probes += [probe] if watched else []
    return times


def _result(settings: DiagnosticsSettings, batch: int, times: Times) -> JsonObject:
    costs = [ratio - 1 for ratio in ratios(times.watched, times.plain)]
    step = statistics.median(times.plain) / settings.every
    probe = statistics.median(times.probes)
    return {
        "batch": batch,
        "cost": statistics.median(costs),
        "least": min(costs),
        "most": max(costs),
        "ms_per_step": 1000 * step,
        "ms_per_probe": 1000 * probe,
        "probe_in_steps": probe / step,
        "cost_of_probes": probe / step / settings.every,
        "first_probe_seconds": times.first,
        "rounds": [
            {"plain": a, "watched": b, "probe": c}
            for a, b, c in zip(times.plain, times.watched, times.probes, strict=True)
        ],
    }


def table(result: JsonObject) -> str:
    """Format the result as Markdown."""
    head = ("batch", "cost (min to max)", "rounds", "ms per step", "ms per probe")
    head += ("probe, steps", "cost by probes", "first probe, s")
    return markdown(head, "rrrrrrrr", [_cells(r) for r in result["results"]])


def _cells(r: JsonObject) -> tuple[str, ...]:
    return (
        f"{r['batch']:,}",
        f"{100 * r['cost']:.1f}% ({100 * r['least']:.1f} to {100 * r['most']:.1f})",
        str(len(r["rounds"])),
        f"{r['ms_per_step']:.1f}",
        f"{r['ms_per_probe']:.1f}",
        f"{r['probe_in_steps']:.2f}",
        f"{100 * r['cost_of_probes']:.2f}%",
        f"{r['first_probe_seconds']:.1f}",
    )


BENCHMARK = Benchmark(
    script="step.py diagnostics",
    about=__doc__,
    settings=DiagnosticsSettings,
    measure=measure,
    text=table,
)
