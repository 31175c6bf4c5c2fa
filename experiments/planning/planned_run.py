"""Define one training run of a plan: settings, the rows and ids that it uses, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.training import RunSettings
from cowclip_merlin.workflows import PreparedData

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
