"""From an experiment to its runs: settings, data variant, and the hash that names them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cowclip_merlin.experiments.definitions import NAMED_MULTIPLIERS, Experiment, ExperimentLine
from cowclip_merlin.experiments.regime import Regime
from cowclip_merlin.experiments.variant import Variant
from cowclip_merlin.loading import validation_rows
from cowclip_merlin.scaling import PRESETS
from cowclip_merlin.training import RunSettings

Tuned = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One training run of a plan.

    Attributes:
        label: of its line.
        multiplier: of the base batch, as the line gives it.
        settings: what is trained.
        variant: of the data.
    """

    label: str
    multiplier: int | str
    settings: RunSettings
    variant: Variant

    def config_hash(self, fingerprint: str) -> str:
        """Equal for runs that must come out equal; `fingerprint` is that of the data given.

        Settings at their defaults are left out, so that an option that is added later does not
        make all earlier runs strangers.
        """
        given = self.settings.as_dict()
        usual = RunSettings(model="deepfm", batch_size=1).as_dict()
        changed = {k: v for k, v in given.items() if v != usual[k] or k in ("model", "batch_size")}
        whole = json.dumps([changed, asdict(self.variant), fingerprint], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def run_id(self, fingerprint: str) -> str:
        """A folder name a person can read."""
        s = self.settings
        parts = (s.model, s.rule, s.effective_clip, f"b{s.batch_size}", f"s{s.seed}")
        return "-".join((*parts, self.config_hash(fingerprint)))


def plan(
    experiment: Experiment,
    regime: Regime,
    *,
    seeds: int,
    update: str = "exact",
    fraction: float = 1.0,
    tuned: Tuned | None = None,
    validation_fraction: float = 0.0,
    mlp: tuple[int, ...] = (400, 400, 400),
) -> list[Run]:
    """All runs of an experiment that its regime allows, line by line.

    Args:
        experiment: of kind "runs".
        regime: sizes and base rates.
        seeds: runs of each cell, with seeds 1 to `seeds`.
        update: for lines that do not say; "dense" where "exact" is asked for and not possible.
        fraction: share of the rows that is used.
        tuned: values chosen on validation rows, for "baseline" and "cowclip".
        validation_fraction: share of the training rows that is scored instead of the test rows.
        mlp: widths of the hidden layers.
    """
    return [
        Run(
            label=line.label,
            multiplier=multiplier,
            settings=settings(
                experiment,
                line,
                regime,
                multiplier,
                seed=seed,
                update=update,
                tuned=tuned or {},
                validation_fraction=validation_fraction,
                mlp=mlp,
            ),
            variant=Variant(fraction=fraction, keep_top=line.keep_top, min_count=line.min_count),
        )
        for line in experiment.lines
        for multiplier in allowed(line, regime, validation_fraction)
        for seed in range(1, seeds + 1)
    ]


def allowed(
    line: ExperimentLine, regime: Regime, validation_fraction: float = 0.0
) -> Iterator[int | str]:
    """The line's multipliers that the regime can carry, without the rows that are held out."""
    rows = regime.rows
    if validation_fraction:
        rows -= validation_rows(rows, validation_fraction)
    for multiplier in line.multipliers:
        s = factor(multiplier, regime)
        fits = multiplier in NAMED_MULTIPLIERS or s <= regime.max_multiplier
        if fits and s * regime.base_batch <= rows:
            yield multiplier


def factor(multiplier: int | str, regime: Regime) -> int:
    """A multiplier as a number."""
    return NAMED_MULTIPLIERS.get(multiplier, 0) * regime.max_multiplier or int(multiplier)


def settings(
    experiment: Experiment,
    line: ExperimentLine,
    regime: Regime,
    multiplier: int | str,
    *,
    seed: int,
    update: str,
    tuned: Tuned,
    validation_fraction: float,
    mlp: tuple[int, ...],
) -> RunSettings:
    """Settings of one run."""
    s = factor(multiplier, regime)
    given = RunSettings(
        model=line.model,
        batch_size=s * regime.base_batch,
        base_batch_size=regime.base_batch,
        preset=experiment.preset,
        rule=line.rule,
        clip=line.clip,
        update=line.update or update,
        epochs=line.epochs or regime.epochs,
        seed=seed,
        overrides=base_values(experiment.preset, line, regime, s, tuned),
        optimizer=line.optimizer,
        validation_fraction=validation_fraction,
        mlp=mlp,
    )
    if given.update == "exact" and not line.update and not exact_can(given, experiment.preset):
        return replace(given, update="dense")  # the same numbers
    return given


def exact_can(settings: RunSettings, preset: str) -> bool:
    """Whether `update="exact"` is possible: absent rows must be moved by L2 alone, unclipped.

    Adagrad's rows must not be moved at all; the optimizer can replay Adam's steps only.
    """
    values = settings.hyperparameters(preset)
    if settings.optimizer == "adagrad" and values.l2:
        return False
    clip = settings.effective_clip
    return clip == "none" or (clip == "cowclip" and 2 * values.l2 <= values.r)


def base_values(
    preset: str, line: ExperimentLine, regime: Regime, s: int, tuned: Tuned
) -> dict[str, float]:
    """What replaces the preset's values at the base batch.

    The regime's rates, then tuned ones, then the line's own, then those of its own sweep; then
    its factors.
    """
    known = getattr(PRESETS[preset], line.base_group)
    values = {
        **getattr(regime, line.base_group),
        **tuned.get(line.base_group, {}),
        **line.overrides,
    }
    if line.group is not None:
        values |= tuned.get(line.group, {})
    if (
        line.base_group == "cowclip" and line.rule != "cowclip"
    ):  # which would start from the baseline
        values = {name: getattr(known, name) for name in _NAMES} | values
    factors = dict(line.factors)
    if line.dense_rule == "linear":  # sqrt(s) of the rule times sqrt(s)
        factors["dense_lr"] = factors.get("dense_lr", 1.0) * s**0.5
    for name, by in factors.items():
        values[name] = values.get(name, getattr(known, name)) * by
    return values


_NAMES = ("embedding_lr", "dense_lr", "l2", "r", "zeta", "init_std", "warmup_epochs")


def missing(experiment: Experiment, regime: Regime, validation_fraction: float = 0.0) -> list[str]:
    """Lines of text for what the regime leaves out."""
    left = []
    for line in experiment.lines:
        carried = set(allowed(line, regime, validation_fraction))
        gone = [m for m in line.multipliers if m not in carried]
        if gone:
            batches = ", ".join(f"{factor(m, regime)} times" for m in gone)
            left.append(f"{line.label} at {batches} the base batch: more than this size carries")
    return left


def describe(regime: Regime) -> str:
    """The regime in one line."""
    rates: Any = regime.cowclip or {"embedding_lr": "the preset's"}
    said = ", ".join(
        f"{n} {v:.3g}" if isinstance(v, float) else f"{n} {v}" for n, v in rates.items()
    )
    largest = regime.base_batch * regime.max_multiplier
    return (
        f"{regime.rows:,} training rows: base batch {regime.base_batch:,}, largest {largest:,} "
        f"({regime.steps_at_largest} steps an epoch), {regime.epochs} epochs; "
        f"CowClip's base rates: {said}"
    )
