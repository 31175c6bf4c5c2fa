"""The hyper-parameters that a search varies, and the settings that it tries first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from cowclip_merlin.checks import one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.sizing import sizing_for
from cowclip_merlin.recipe import own_table_defaults
from cowclip_merlin.scaling import PRESETS, Hyperparameters, multipliers, rebase, scale
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import JsonObject

if TYPE_CHECKING:
    from optuna.trial import Trial

    from cowclip_merlin.workflows import PreparedData

CLIPS = ("none", "cowclip")

RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "embedding_lr": (3e-5, 3e-2),
        "dense_lr": (3e-5, 3e-2),
        "l2": (1e-8, 1e-1),  # Adam's epsilon hides a smaller gradient of L2
        "r": (1e-3, 1e1),
    }
)
"""Smallest and largest value of each rate at the batch size of the trials, where it acts."""

ADAGRAD_RATES = (1e-3, 1.0)
"""The same for both learning rates of Adagrad."""


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """What a search varies, around settings that all trials share, with a preset.

    Their `overrides` stay as they are, and so does a `clip` that is not None.

    Raises:
        InputError: if the clip is none of `CLIPS`, or nothing is left to search.

    >>> SearchSpace(shared=RunSettings(model="dcn", batch_size=8, overrides={"l2": 0.0})).rates
    ('embedding_lr', 'dense_lr', 'r')
    """

    shared: RunSettings

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.shared.clip is not None:
            one_of("clip", self.shared.clip, CLIPS)
        if not self.rates and self.shared.clip is not None:
            raise InputError("every rate is given, so nothing is left to search; omit one")

    @property
    def clips(self) -> tuple[str, ...]:
        """The clips to search."""
        return CLIPS if self.shared.clip is None else (self.shared.clip,)

    @property
    def rates(self) -> tuple[str, ...]:
        """The rates to search."""
        usable = [name for name in RANGES if name != "r" or "cowclip" in self.clips]
        return tuple(name for name in usable if name not in self.shared.overrides)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest base value of each rate to search."""
        factors, known = self._factors(), dict(RANGES)
        if self.shared.optimizer != "adam":
            known |= dict.fromkeys(("embedding_lr", "dense_lr"), ADAGRAD_RATES)
        return {n: (known[n][0] / factors[n], known[n][1] / factors[n]) for n in self.rates}

    def _factors(self) -> dict[str, float]:
        """Return by what the rule multiplies each rate."""
        shared = self.shared
        s = shared.batch_size / shared.base_batch_size
        factors = multipliers(shared.rule, s, optimizer=shared.optimizer)
        return {n: factors.clip if n == "r" else getattr(factors, n) for n in RANGES}

    def suggest(self, trial: Trial) -> RunSettings:
        """Return the settings that Optuna suggests for a trial."""
        clips = self.clips
        clip = trial.suggest_categorical("clip", clips) if len(clips) > 1 else clips[0]
        names = [name for name in self.rates if name != "r" or clip == "cowclip"]
        ranges = self.ranges
        rates = {name: trial.suggest_float(name, *ranges[name], log=True) for name in names}
        given = {**self.shared.overrides, **rates}
        return without_unused(replace(self.shared, clip=clip, overrides=given))

    def nearest(self, settings: RunSettings) -> JsonObject:
        """Return the point of the search with the scaled values nearest to those of a run.

        The run may have another rule. Its point tells Optuna about the region, not about the
        exact settings.
        """
        values, factors = settings.hyperparameters("table"), self._factors()
        point: JsonObject = {}
        if len(self.clips) > 1:
            point["clip"] = settings.effective_clip
        for name, (low, high) in self.ranges.items():
            if name != "r" or settings.effective_clip == "cowclip":
                point[name] = min(max(getattr(values, name) / factors[name], low), high)
        return point


def without_unused(settings: RunSettings) -> RunSettings:
    """Return the settings without the rates that their clip does not use."""
    unused = settings.unused_overrides()
    used = {name: value for name, value in settings.overrides.items() if name not in unused}
    return replace(settings, overrides=used)


def first_settings(
    space: SearchSpace, data: PreparedData, *, rows: int, preset: str | None
) -> dict[str, RunSettings]:
    """Return the settings to try first, by name.

    - "defaults": the rule, the clip and the rates of `cowclip train`, which for a table of the
      user's own follow from its rows and ids; `preset` is that of the user, or None.
    - "formula": the rates for this number of rows; see `sizing`. Missing if there are too few
      rows for it, or so many that the formula gives the preset's rates; only for Adam.
    """
    shared, clip = space.shared, space.clips[0]
    given = {"base_batch_size": shared.base_batch_size, "overrides": shared.overrides}
    given |= {"optimizer": shared.optimizer}
    usual = own_table_defaults(data, given | {"preset": preset})
    names = ("rule", "overrides")
    chosen = {name: usual[name] for name in names if name in usual}
    defaults = replace(shared, **{"rule": RunSettings.rule, **chosen})
    found = {"defaults": without_unused(defaults)}
    rates = _formula(shared, rows, clip)
    if rates and shared.optimizer == "adam":
        given = {**rates, **shared.overrides}
        found["formula"] = without_unused(replace(shared, clip=clip, overrides=given))
    return found


def _formula(shared: RunSettings, rows: int, clip: str) -> dict[str, float]:
    """Return the formula's base rates, carried to the base batch size by the rule."""
    try:
        sizing = sizing_for(rows, preset=shared.preset or "criteo", epochs=shared.epochs)
    except InputError:  # too few rows
        return {}
    rates = sizing.baseline if clip == "none" else sizing.cowclip
    if not rates:
        return {}
    base = Hyperparameters(batch_size=sizing.base_batch, **rates)
    there = asdict(scale(base, to=shared.base_batch_size, rule=shared.rule))
    return {name: there[name] for name in rates}


def base_rates(settings: RunSettings) -> dict[str, float]:
    """Return the searched rates of a run at its base batch size, the preset's included.

    >>> run = RunSettings(model="dcn", batch_size=8, preset="criteo", overrides={"l2": 0.5})
    >>> base_rates(run)
    {'embedding_lr': 0.0001, 'dense_lr': 0.0008, 'l2': 0.5, 'r': 1.0}
    """
    preset = rebase(
        PRESETS[settings.preset or "criteo"],
        batch_size=settings.base_batch_size,
        values=settings.overrides,
    )
    values = preset.cowclip if settings.rule == "cowclip" else preset.baseline
    names = [n for n in RANGES if n != "r" or settings.effective_clip == "cowclip"]
    return {name: getattr(values, name) for name in names}
