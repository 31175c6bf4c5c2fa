"""Plan the runs of an experiment: their settings, rows, ids, hashes and time."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from types import MappingProxyType
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import (
    NAMED_MULTIPLIERS,
    OF_RUN,
    Experiment,
    ExperimentLine,
)
from cowclip_merlin.experiments.results import Result, TunedValues
from cowclip_merlin.experiments.sizing import Sizing
from cowclip_merlin.loading import validation_rows
from cowclip_merlin.recipe import update_words
from cowclip_merlin.scaling import PRESETS
from cowclip_merlin.training import RunSettings
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.folder import VALIDATION

_PRESET_VALUES = ("embedding_lr", "dense_lr", "l2", "r", "zeta", "init_std", "warmup_epochs")
_USUAL_LAYERS: Mapping[str, Any] = MappingProxyType({"mlp": (400, 400, 400)})
SAMPLE_SEED = 20220413
VALIDATION_FRACTION = 0.1


@dataclass(frozen=True, kw_only=True)
class DataVariant:
    """A subset of a data set; by default all of it.

    >>> str(DataVariant(fraction=0.5, keep_top=3))
    'rows x 0.5, top 3 ids'
    """

    fraction: float = 1.0  # of the rows, in both splits; a seeded choice
    keep_top: int | None = None  # ids per field, the most frequent ones; None: all
    min_count: int | None = None  # occurrences in the training rows of the ids to keep

    def __str__(self) -> str:
        """Return the changes as text; empty for the whole data set."""
        parts = [f"rows x {self.fraction:g}"] if self.fraction < 1 else []
        parts += [f"top {self.keep_top} ids"] if self.keep_top is not None else []
        parts += [f"ids seen {self.min_count} times"] if self.min_count is not None else []
        return ", ".join(parts)

    def fingerprint(self, data: PreparedData) -> str:
        """Return the fingerprint of the subset; for all of the data, that of the data."""
        if not str(self):
            return data.fingerprint
        whole = json.dumps([data.fingerprint, asdict(self), SAMPLE_SEED], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRun:
    """One training of a plan: a line at one of its multipliers, with one seed."""

    label: str
    multiplier: int | str
    settings: RunSettings
    variant: DataVariant

    def config_hash(self, fingerprint: str) -> str:
        """Return a hash that is equal for runs with equal results.

        `fingerprint` is that of the given data. Settings at their defaults are omitted, so that a
        new option does not change the names of earlier runs. So is a clip that the rule implies.
        """
        settings = self.settings
        if settings.clip and replace(settings, clip=None).effective_clip == settings.clip:
            settings = replace(settings, clip=None)
        given = settings.as_dict()
        usual = RunSettings(model="deepfm", batch_size=1).as_dict()
        changed = {k: v for k, v in given.items() if v != usual[k] or k in ("model", "batch_size")}
        whole = json.dumps([changed, asdict(self.variant), fingerprint], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def run_id(self, fingerprint: str) -> str:
        """Return a readable name for the run's folder."""
        s = self.settings
        parts = (s.model, s.rule, s.effective_clip, f"b{s.batch_size}", f"s{s.seed}")
        return "-".join((*parts, self.config_hash(fingerprint)))


RunResults = Mapping[PlannedRun, Result]
"""The existing results, by run."""
CellResults = Mapping[tuple[str, int | str], Sequence[Result]]
"""Label of a line and multiplier -> its results, one for each seed."""


def by_cell(results: RunResults) -> CellResults:
    """Return the results of each line at each multiplier."""
    found: dict[tuple[str, int | str], list[Result]] = {}
    for run, result in results.items():
        found.setdefault((run.label, run.multiplier), []).append(result)
    return found


def of_data(experiment: Experiment, data: PreparedData) -> Experiment:
    """Return an experiment with the lines for this kind of data.

    Raises:
        InputError: if it is for other kinds, or needs validation rows that the data lack.
    """
    known = experiment.base_batch
    if known and data.kind not in known:
        raise InputError(
            f"{experiment.cli_name}: {data.path} is a {data.kind} log; give data of prepare "
            f"{' or '.join(known)}"
        )
    lines = tuple(line for line in experiment.lines if line.data in (None, data.kind))
    for line in lines if experiment.kind != "sweep" and VALIDATION not in data.rows else ():
        if line.chooses_epoch:
            raise InputError(
                f"{experiment.cli_name}, {line.label}: validation rows choose the epoch, and "
                f"{data.path} has none; prepare it with `validation`"
            )
    return replace(experiment, lines=lines)


def plan_runs(
    experiment: Experiment,
    sizing: Sizing,
    *,
    seeds: int,
    update: str = "exact",
    fraction: float = 1.0,
    tuned: TunedValues | None = None,
    sweep: bool = False,
    stored: bool = False,
    layers: Mapping[str, Any] = _USUAL_LAYERS,
) -> list[PlannedRun]:
    """Return all runs of an experiment that its sizing allows, line by line.

    Args:
        experiment: an experiment of a kind that trains.
        sizing: batches and base rates.
        seeds: runs of each cell, with seeds 1 to `seeds`.
        update: default for lines without one; "dense" replaces "exact" if that is not possible.
        fraction: share of the rows to use.
        tuned: values that sweeps chose.
        sweep: score validation rows instead of the test rows; lines that choose an epoch by them
            do so in any case.
        stored: whether the data have validation rows of their own.
        layers: attributes of `RunSettings` that describe the layers of all models.
    """

    def fraction_of(line: ExperimentLine) -> float:
        held_out = not stored and (sweep or line.chooses_epoch)
        return VALIDATION_FRACTION if held_out else 0.0

    def settings_of(line: ExperimentLine, multiplier: int | str, seed: int) -> RunSettings:
        settings = RunSettings(
            model=line.model,
            batch_size=sizing.batch(multiplier),
            base_batch_size=sizing.base_batch,
            preset=experiment.preset,
            rule=line.rule,
            clip=line.clip,
            update=line.update or update,
            epochs=line.epochs or sizing.epochs,
            seed=seed,
            overrides=_base_values(experiment.preset, line, sizing, multiplier, tuned or {}),
            validation_fraction=fraction_of(line),
            validation_split="given" if stored and (sweep or line.chooses_epoch) else "random",
            **{name: getattr(line, name) for name in OF_RUN},
            **(layers | ({"mlp": line.mlp} if line.mlp else {})),
        )
        if settings.update != "exact" or line.update:
            return settings
        return replace(settings, update=update_words(settings, experiment.preset)[0])

    return [
        PlannedRun(
            label=line.label,
            multiplier=multiplier,
            settings=settings_of(line, multiplier, seed),
            variant=DataVariant(
                fraction=fraction, keep_top=line.keep_top, min_count=line.min_count
            ),
        )
        for line in experiment.lines
        for multiplier in feasible_multipliers(line, sizing, fraction_of(line))
        for seed in range(1, seeds + 1)
    ]


def _base_values(
    preset: str, line: ExperimentLine, sizing: Sizing, multiplier: int | str, tuned: TunedValues
) -> dict[str, float]:
    """Return the values that replace the preset's at the base batch.

    Later sources win: the sizing's rates, tuned values, the line's overrides, values of the
    line's own sweep. The line's factors are applied last.
    """
    group = line.base_group
    known = getattr(PRESETS[preset], group)
    values = {**getattr(sizing, group), **tuned.get(group, {}), **line.overrides}
    if line.group is not None:
        values |= tuned.get(line.group, {})
    if group == "cowclip" and line.rule != "cowclip":  # the rule would start from the baseline
        values = {name: getattr(known, name) for name in _PRESET_VALUES} | values
    factors = dict(line.factors)
    if line.dense_rule == "linear":  # sqrt(s) of the rule times sqrt(s)
        factors["dense_lr"] = factors.get("dense_lr", 1.0) * sizing.factor(multiplier) ** 0.5
    for name, by in factors.items():
        values[name] = values.get(name, getattr(known, name)) * by
    return values


def feasible_multipliers(
    line: ExperimentLine, sizing: Sizing, validation_fraction: float = 0.0
) -> Iterator[int | str]:
    """Return the line's multipliers whose batch is not too large; ignore held-out rows."""
    rows = sizing.rows
    if validation_fraction:
        rows -= validation_rows(rows, validation_fraction)
    for multiplier in line.multipliers:
        within = multiplier in NAMED_MULTIPLIERS or multiplier <= sizing.max_multiplier
        if within and sizing.batch(multiplier) <= rows:
            yield multiplier


def describe_infeasible(
    experiment: Experiment, sizing: Sizing, validation_fraction: float = 0.0
) -> list[str]:
    """Return one text for each line with batches that are too large for the data."""
    texts = []
    for line in experiment.lines:
        feasible = set(feasible_multipliers(line, sizing, validation_fraction))
        left_out = [m for m in line.multipliers if m not in feasible]
        if left_out:
            batches = ", ".join(f"{sizing.factor(m)} times" for m in left_out)
            texts.append(
                f"{line.label} at {batches} the base batch: too large for this number of rows"
            )
    return texts


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
