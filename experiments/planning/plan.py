"""Plan the runs of an experiment: their settings, rows, ids and hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import NAMED_MULTIPLIERS, Experiment, ExperimentLine
from cowclip_merlin.experiments.definitions.experiment import OF_RUN
from cowclip_merlin.experiments.planning.sizing import Sizing
from cowclip_merlin.experiments.results.folder import TunedValues
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.loading import validation_rows
from cowclip_merlin.recipe import update_words
from cowclip_merlin.scaling import PRESETS
from cowclip_merlin.training import RunSettings
from cowclip_merlin.workflows import PreparedData

_PRESET_VALUES = ("embedding_lr", "dense_lr", "l2", "r", "zeta", "init_std", "warmup_epochs")


def make_run_settings(
    experiment: Experiment,
    line: ExperimentLine,
    sizing: Sizing,
    multiplier: int | str,
    *,
    seed: int,
    update: str,
    tuned: TunedValues,
    held_out: Mapping[str, Any],
    layers: Mapping[str, Any],
) -> RunSettings:
    """Make the settings of one run; see `plan_runs` for the arguments."""
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
        overrides=base_values(
            experiment.preset, line, sizing, factor=sizing.factor(multiplier), tuned=tuned
        ),
        **held_out,
        **{name: getattr(line, name) for name in OF_RUN},
        **layers,
    )
    if settings.update != "exact" or line.update:
        return settings
    return replace(settings, update=update_words(settings, experiment.preset)[0])


def base_values(
    preset: str, line: ExperimentLine, sizing: Sizing, *, factor: int, tuned: TunedValues
) -> dict[str, float]:
    """Return the values that replace the preset's at the base batch.

    Later sources win: the sizing's rates, tuned values, the line's overrides, values of the
    line's own sweep. The line's factors are applied last.

    Args:
        preset: "criteo" or "avazu".
        line: line of the experiment.
        sizing: batches and base rates.
        factor: the batch as a multiple of the base batch.
        tuned: values that sweeps chose.
    """
    group = line.base_group
    known = getattr(PRESETS[preset], group)
    values = {**getattr(sizing, group), **tuned.get(group, {}), **line.overrides}
    if line.group is not None:
        values |= tuned.get(line.group, {})
    if group == "cowclip" and line.rule != "cowclip":  # the rule would start from the baseline
        values = {name: getattr(known, name) for name in _PRESET_VALUES} | values
    for name, by in _factors(line, factor).items():
        values[name] = values.get(name, getattr(known, name)) * by
    return values


def _factors(line: ExperimentLine, factor: int) -> dict[str, float]:
    factors = dict(line.factors)
    if line.dense_rule == "linear":  # sqrt(s) of the rule times sqrt(s)
        factors["dense_lr"] = factors.get("dense_lr", 1.0) * factor**0.5
    return factors


SAMPLE_SEED = 20220413


@dataclass(frozen=True, kw_only=True)
class DataVariant:
    """A subset of a data set; by default all of it.

    Attributes:
        fraction: share of the rows to keep, in both splits; a seeded choice.
        keep_top: number of ids to keep per field, the most frequent ones; None: all.
        min_count: keep ids that occur at least this often in the training rows; None: once.

    Raises:
        InputError: if a value is out of range.

    >>> str(DataVariant(fraction=0.5, keep_top=3))
    'rows x 0.5, top 3 ids'
    """

    fraction: float = 1.0
    keep_top: int | None = None
    min_count: int | None = None

    def __post_init__(self) -> None:
        """Reject values that would keep nothing."""
        if not 0 < self.fraction <= 1:
            raise InputError(f"`scale` is {self.fraction:g}; use a share above 0, at most 1")
        for name in ("keep_top", "min_count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")

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
    """One training run of a plan.

    Attributes:
        label: label of its line.
        multiplier: multiple of the base batch, as in the line.
        settings: settings of the training.
        variant: subset of the data.
    """

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
            settings = replace(settings, clip=None)  # the rule implies this clip
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


_USUAL_LAYERS: Mapping[str, Any] = MappingProxyType({"mlp": (400, 400, 400)})


def plan_runs(
    experiment: Experiment,
    sizing: Sizing,
    *,
    seeds: int,
    update: str = "exact",
    fraction: float = 1.0,
    tuned: TunedValues | None = None,
    validation_fraction: float = 0.0,
    validation_split: str = "random",
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
        validation_fraction: share of the training rows to score instead of the test rows.
        validation_split: which rows these are; "given": those of `prepare`, without a share.
        layers: attributes of `RunSettings` that describe the layers of all models.
    """
    held_out = {"validation_fraction": validation_fraction, "validation_split": validation_split}
    return [
        PlannedRun(
            label=line.label,
            multiplier=multiplier,
            settings=make_run_settings(
                experiment,
                line,
                sizing,
                multiplier,
                seed=seed,
                update=update,
                tuned=tuned or {},
                held_out=held_out,
                layers=layers,
            ),
            variant=DataVariant(
                fraction=fraction, keep_top=line.keep_top, min_count=line.min_count
            ),
        )
        for line in experiment.lines
        for multiplier in feasible_multipliers(line, sizing, validation_fraction)
        for seed in range(1, seeds + 1)
    ]


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
