"""Make the settings of one run: merge base values from four sources, and choose the update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cowclip_merlin.experiments.definitions import Experiment, ExperimentLine
from cowclip_merlin.experiments.definitions.experiment import OF_RUN
from cowclip_merlin.experiments.planning.sizing import Sizing
from cowclip_merlin.experiments.results.tuned import TunedValues
from cowclip_merlin.recipe import update_words
from cowclip_merlin.scaling import PRESETS
from cowclip_merlin.training import RunSettings

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
