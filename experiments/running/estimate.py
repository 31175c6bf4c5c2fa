"""Estimate the time of runs from a few steps of each model at its smallest and largest batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, islice

from cowclip_merlin import compat
from cowclip_merlin.experiments.planning.plan import PlannedRun
from cowclip_merlin.training import RunSettings
from cowclip_merlin.types import Tensor
from cowclip_merlin.workflows import PreparedData

SETUP_SECONDS = 5.0
CALLS = 6
ModelAndUpdate = tuple[str, str]


def estimate_seconds(runs: Sequence[PlannedRun], data: PreparedData) -> float:
    """Estimate the seconds of these runs, with evaluation and set-up.

    The time of a step is modeled as a constant plus a cost per row. Both are measured for each
    model and update.
    """
    costs = {key: _step_cost(settings, data) for key, settings in _grouped(runs).items()}
    return sum(_seconds(run, data.rows, *costs[_model_and_update(run)]) for run in runs)


def _model_and_update(run: PlannedRun) -> ModelAndUpdate:
    return run.settings.model, run.settings.update


def _grouped(runs: Sequence[PlannedRun]) -> dict[ModelAndUpdate, list[RunSettings]]:
    groups: dict[ModelAndUpdate, list[RunSettings]] = {}
    for run in runs:
        groups.setdefault(_model_and_update(run), []).append(run.settings)
    return groups


def _step_cost(settings: Sequence[RunSettings], data: PreparedData) -> tuple[float, float]:
    """Return the seconds of a step without rows, and those of each row."""
    small = min(settings, key=lambda s: s.batch_size)
    large = max(settings, key=lambda s: s.batch_size)
    first, last = step_seconds(small, data), step_seconds(large, data)
    rows = large.batch_size - small.batch_size
    slope = max(0.0, (last - first) / rows) if rows else 0.0
    return max(0.0, first - slope * small.batch_size), slope


def _seconds(run: PlannedRun, rows: Mapping[str, int], fixed: float, slope: float) -> float:
    train, test = (run.variant.fraction * rows[split] for split in ("train", "test"))
    steps = math.ceil(train / run.settings.batch_size)
    epoch = steps * fixed + train * slope + test * slope / 2
    return SETUP_SECONDS + run.settings.epochs * epoch


def step_seconds(settings: RunSettings, data: PreparedData) -> float:
    """Measure the median seconds of a training step on this data set, called as in training."""
    import statistics

    train, calls = _stepper(settings, data)
    times = []
    for rows in islice(cycle(calls), CALLS):
        started = time.perf_counter()
        train(rows)
        steps = -(-len(rows) // settings.batch_size)
        times.append((time.perf_counter() - started) / steps)
    return statistics.median(times[2:])  # the first ones trace and warm up


def _stepper(
    settings: RunSettings, data: PreparedData
) -> tuple[Callable[[Tensor], None], Iterable[Tensor]]:
    """Return a function that trains on the rows of one call, and the rows of some calls."""
    from cowclip_merlin.loading import DeviceData, open_train_columns
    from cowclip_merlin.training.build import build_model, build_optimizer
    from cowclip_merlin.training.train_step import make_train_function, steps_per_execution

    tf = compat.tensorflow()
    values = settings.hyperparameters(data.kind)
    columns = DeviceData(open_train_columns(data))
    model = build_model(settings, values, data)
    optimizer = build_optimizer(settings, values, data, steps=1)
    optimizer.create_state(model.trainable_variables)
    total = tf.Variable(0.0, dtype=tf.float64)
    run = make_train_function(model, optimizer, columns, total)
    rows = settings.batch_size * steps_per_execution(settings.batch_size)

    def train(rows: Tensor) -> None:
        run(rows, settings.batch_size)
        total.numpy()  # waits for the device

    return train, columns.variable_batches([rows] * CALLS, seed=0, epoch=0)
