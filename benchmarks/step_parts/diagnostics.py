"""Measure the cost of the diagnostics: training steps with and without them, in turn.

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
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.contrib.diagnostics.record import compute_deciles
from cowclip_merlin.loading import DeviceData
from cowclip_merlin.settings import device_option, option
from cowclip_merlin.types import JsonObject, Tensor
from harness import Benchmark, ratios, table
from step_parts.trained import Trained, VocabulariesChecked, batch_sizes, layers

IN_JSON = ("update", "every", "vocabulary", "rounds", "seconds")


@dataclass(frozen=True, kw_only=True)
class DiagnosticsSettings(VocabulariesChecked):
    """What is measured."""

    batches: tuple[int, ...] = batch_sizes(1024, 16384)
    update: str = option("exact", "update of the tables", choices=choices.UPDATES)
    every: int = option(100, "steps between probes, and of a turn", at_least=1)
    vocabulary: int = option(300_000, "ids of all fields together")
    mlp: tuple[int, ...] = layers()
    rounds: int = option(5, "minimum number per batch size", at_least=1)
    seconds: float = option(60.0, "continue with rounds until this many have passed", at_least=0)
    device: str = device_option()


class RecordedTraining:
    """A model in training, with a recorder that writes into a folder."""

    def __init__(self, settings: DiagnosticsSettings, batch: int, folder: Path) -> None:
        from cowclip_merlin.contrib.diagnostics.probe import make_probe
        from cowclip_merlin.contrib.diagnostics.record import Recorder
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

    def turn(self, steps: int) -> float:
        """Train this many steps and return the seconds."""
        started = time.perf_counter()
        for _ in range(steps):
            self._run.step(self._next())
            self._done += 1
        self._run.wait()
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


def measure(settings: DiagnosticsSettings) -> JsonObject:
    """Measure every batch size; return a result for JSON."""
    return {
        "what": "cost of diagnostics in training",
        **{name: getattr(settings, name) for name in IN_JSON},
        "mlp": list(settings.mlp),
        "results": [_result(settings, batch) for batch in settings.batches],
    }


def _result(settings: DiagnosticsSettings, batch: int) -> JsonObject:
    with TemporaryDirectory() as folder:
        run = RecordedTraining(settings, batch, Path(folder))
        run.turn(2)
        first, rounds = run.probe(), []
        started = time.perf_counter()
        while len(rounds) < settings.rounds or time.perf_counter() - started < settings.seconds:
            each = {}
            for name in ("plain", "watched") if len(rounds) % 2 else ("watched", "plain"):
                probe = run.probe() if name == "watched" else 0.0
                each[name] = probe + run.turn(settings.every)
                each |= {"probe": probe} if probe else {}
            rounds.append(each)
    plain, watched, probes = ([r[name] for r in rounds] for name in ("plain", "watched", "probe"))
    costs = [ratio - 1 for ratio in ratios(watched, plain)]
    step, probe = statistics.median(plain) / settings.every, statistics.median(probes)
    return {
        "batch": batch,
        "cost": statistics.median(costs),
        "least": min(costs),
        "most": max(costs),
        "ms_per_step": 1000 * step,
        "ms_per_probe": 1000 * probe,
        "probe_in_steps": probe / step,
        "cost_of_probes": probe / step / settings.every,
        "first_probe_seconds": first,
        "rounds": rounds,
    }


COLUMNS = {
    "batch": "{batch:,}",
    "cost (min to max)": "{cost:.1%} ({least:.1%} to {most:.1%})",
    "ms per step": "{ms_per_step:.1f}",
    "ms per probe": "{ms_per_probe:.1f}",
    "probe, steps": "{probe_in_steps:.2f}",
    "cost by probes": "{cost_of_probes:.2%}",
    "first probe, s": "{first_probe_seconds:.1f}",
}


def text(result: JsonObject) -> str:
    """Format the result as Markdown."""
    return table(COLUMNS, result["results"])


BENCHMARK = Benchmark(about=__doc__, settings=DiagnosticsSettings, measure=measure, text=text)
