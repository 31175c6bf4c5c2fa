"""Estimate the time of runs from a few steps of each model at its smallest and largest batch."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from itertools import cycle, islice

from cowclip_merlin import compat
from cowclip_merlin.experiments.on_data.plan import PlannedRun
from cowclip_merlin.training import RunSettings
from cowclip_merlin.workflows import PreparedData

SETUP_SECONDS = 5.0
CALLS = 6


def estimate_seconds(runs: Sequence[PlannedRun], data: PreparedData) -> float:
    """Estimate the seconds of these runs, with evaluation and set-up.

    The time of a step is modeled as a constant plus a cost per row. Both are measured for each
    model and update.
    """
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.settings.model, run.settings.update), []).append(run)
    total = 0.0
    for group in groups.values():
        fixed, slope = _step_cost([run.settings for run in group], data)
        for run in group:
            train, test = (run.variant.fraction * data.rows[split] for split in ("train", "test"))
            steps = math.ceil(train / run.settings.batch_size)
            epoch = steps * fixed + train * slope + test * slope / 2
            total += SETUP_SECONDS + run.settings.epochs * epoch
    return total


def _step_cost(settings: Sequence[RunSettings], data: PreparedData) -> tuple[float, float]:
    """Return the seconds of a step without rows, and those of each row."""
    small = min(settings, key=lambda s: s.batch_size)
    large = max(settings, key=lambda s: s.batch_size)
    first, last = step_seconds(small, data), step_seconds(large, data)
    rows = large.batch_size - small.batch_size
    slope = max(0.0, (last - first) / rows) if rows else 0.0
    return max(0.0, first - slope * small.batch_size), slope


def step_seconds(settings: RunSettings, data: PreparedData) -> float:
    """Measure the median seconds of a training step on this data set, called as in training."""
    from cowclip_merlin.loading import DeviceData, open_train_columns
    from cowclip_merlin.training.build import build_model, build_optimizer
    from cowclip_merlin.training.train_step import make_train_function, steps_per_execution

    tf = compat.tensorflow()
    values, batch = settings.hyperparameters(data.kind), settings.batch_size
    columns = DeviceData(open_train_columns(data))
    model = build_model(settings, values, data)
    optimizer = build_optimizer(settings, values, data, steps=1)
    optimizer.create_state(model.trainable_variables)
    total = tf.Variable(0.0, dtype=tf.float64)
    train = make_train_function(model, optimizer, columns, total)
    sizes = [batch * steps_per_execution(batch)] * CALLS
    times = []
    for rows in islice(cycle(columns.variable_batches(sizes, seed=0, epoch=0)), CALLS):
        started = time.perf_counter()
        train(rows, batch)
        total.numpy()  # waits for the device
        times.append((time.perf_counter() - started) / -(-len(rows) // batch))
    return statistics.median(times[2:])  # the first ones trace and warm up
