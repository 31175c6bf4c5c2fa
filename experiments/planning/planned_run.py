"""Define one training run of a plan, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from cowclip_merlin.experiments.planning.data_variant import DataVariant
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.training import RunSettings


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
